from __future__ import annotations

from tools.check_protos import PROTO_FOLDER, ROOT, differences, generated_files


def test_equal_files_do_not_differ() -> None:
    assert differences({"a_pb2.py": "x = 1\n"}, {"a_pb2.py": "x = 1\n"}) == []


def test_each_file_that_is_missing_changed_or_left_over_is_told() -> None:
    told = differences({"gone_pb2.py": "a\n", "old_pb2.py": "a\n"}, {"old_pb2.py": "b\n", "new_pb2.py": "c\n"})
    assert [line for line in told if line.startswith(("-", "+")) and line[1] not in "-+"] == ["-a", "+c", "-a", "+b"]


def test_the_committed_code_is_found() -> None:
    protos = {path.stem for path in (ROOT / PROTO_FOLDER).glob("*.proto")}
    assert protos
    assert set(generated_files(ROOT)) == {f"{stem}_pb2.{end}" for stem in protos for end in ("py", "pyi")}
