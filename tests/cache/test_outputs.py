from __future__ import annotations

import sys
import threading

import pytest

from dsnb.cache.results.outputs import OutputCapture, capture_output, replay


def test_what_is_printed_is_seen_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with capture_output() as outputs:
        print("a", 1)  # noqa: T201
        print("b", file=sys.stderr)  # noqa: T201
        sys.stdout.writelines(["c\n", "d\n"])
    print("not kept")  # noqa: T201
    assert outputs == [["stdout", "a 1\n"], ["stderr", "b\n"], ["stdout", "c\nd\n"]]
    assert capsys.readouterr() == ("a 1\nc\nd\nnot kept\n", "b\n")
    assert (sys.stdout, sys.stderr) == before


def test_inner_and_outer_both_hear(capsys: pytest.CaptureFixture[str]) -> None:
    with capture_output() as outer:
        print("1")  # noqa: T201
        with capture_output() as inner:
            print("2")  # noqa: T201
        print("3")  # noqa: T201
    assert (inner, outer) == ([["stdout", "2\n"]], [["stdout", "1\n2\n3\n"]])
    assert capsys.readouterr().out == "1\n2\n3\n"


def test_other_threads_are_not_heard(capsys: pytest.CaptureFixture[str]) -> None:
    with capture_output() as outputs:
        thread = threading.Thread(target=print, args=("other",))
        thread.start()
        thread.join()
        print("mine")  # noqa: T201
    assert outputs == [["stdout", "mine\n"]]
    assert capsys.readouterr().out == "other\nmine\n"


def test_the_streams_come_back_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with pytest.raises(ValueError, match="no"), capture_output():
        raise ValueError("no")
    assert sys.stdout is before


def test_the_stand_in_is_a_stream_in_all_else(capsys: pytest.CaptureFixture[str]) -> None:
    with capture_output():
        sys.stdout.flush()
        assert sys.stdout.writable()
        assert sys.stdout.encoding


def test_endless_printing_is_cut_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = OutputCapture()
    for _ in range(30):
        recorder.on_text("stdout", "x" * 100_000)
    text = "".join(output[1] for output in recorder.outputs)
    assert len(text) < 1_100_000
    assert text.endswith("x\n(what was printed after this was not kept)\n")


def test_widgets_are_kept_as_their_text() -> None:
    recorder = OutputCapture()
    widget = {"text/plain": "a bar", "application/vnd.jupyter.widget-view+json": {"model_id": "1"}}
    message = {"header": {"msg_type": "display_data"}, "content": {"data": widget, "metadata": {}}}
    assert recorder.on_display_message(message) is message
    assert recorder.outputs == [["display", {"text/plain": "a bar"}, {}]]
    recorder.on_display_message({"header": {"msg_type": "clear_output"}, "content": {}})
    picture = {"image/png": b"\x89PNG", "text/plain": "a picture"}
    recorder.on_display_message({"header": {"msg_type": "display_data"}, "content": {"data": picture}})
    assert recorder.outputs.pop() == ["display", {"image/png": "iVBORw==", "text/plain": "a picture"}, {}]
    assert len(recorder.outputs) == 1


def test_outputs_are_shown_below_a_title_and_none_not_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    replay("from the cache:", [["stdout", "a\n"], ["stderr", "b\n"], ["display", {"text/plain": "<c>"}, {}]])
    assert capsys.readouterr() == ("from the cache:\na\n<c>\n", "b\n")
    replay("from the cache:", [])
    assert capsys.readouterr() == ("", "")
