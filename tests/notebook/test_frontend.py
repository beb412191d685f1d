"""Which application shows the cells, and what the dashboard is there.

VS Code and Colab cannot be run in tests. What a kernel of theirs has (variables, a module) is put into a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsnb.notebook.display import dashboard_links
from dsnb.notebook.frontend import Frontend, detect_frontend, vs_code_url

URL = "http://127.0.0.1:5006/?key=k"
IN_A_KERNEL = f"""
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.kernel = object()  # what a shell has in a kernel
exec(sys.argv[1])
from dsnb.notebook import display
from dsnb.notebook.frontend import detect_frontend
frame = display.dashboard_frame({URL!r}, 420)
if hasattr(frame, "_ipython_display_"):
    frame._ipython_display_()
    html = ""
else:
    html = frame._repr_html_()
print(json.dumps([detect_frontend().name, html, display.dashboard_links({URL!r})]))
"""
COLAB_OUTPUT = """
def serve_kernel_port_as_iframe(port, path="/", width="100%", height="400", cache_in_notebook=False):
    print(port, path, width, height)
"""


def in_kernel(code: str = "", **env: str) -> list[str]:
    """What a process prints whose shell is a kernel's and that has run some code: the output, line by line."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("VSCODE", "JUPYTERHUB"))}
    command = [sys.executable, "-c", IN_A_KERNEL, code]
    done = subprocess.run(command, env={**inherited, **env}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_vs_code_is_known_by_its_environment_and_the_page_is_at_the_forwarded_port() -> None:
    name, html, links = json.loads(in_kernel(VSCODE_PID="1")[-1])
    assert name == "VS_CODE"
    assert f'src="{URL}"' in html
    assert "forward port 5006" in html
    assert links.endswith("(port 5006)")
    assert "proxy" not in links


@pytest.mark.slow
def test_vs_code_on_a_jupyter_server_is_known_by_its_variable_and_is_not_sent_to_the_proxy() -> None:
    code = "shell.user_ns['__vsc_ipynb_file__'] = '/home/me/a.ipynb'"
    name, html, _ = json.loads(in_kernel(code, JUPYTERHUB_SERVICE_PREFIX="/user/me/")[-1])
    assert name == "VS_CODE"
    assert f'src="{URL}"' in html


@pytest.mark.slow
def test_colab_is_known_by_its_module_which_shows_the_port(tmp_path: Path) -> None:
    package = tmp_path / "google" / "colab"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "output.py").write_text(COLAB_OUTPUT)
    shown, last = in_kernel(
        f"import google; google.__path__ = [*google.__path__, {str(package.parent)!r}]; import google.colab"
    )
    name, _, links = json.loads(last)
    assert name == "COLAB"
    assert shown == "5006 /?key=k 100% 420"
    assert "href" not in links  # Colab's proxy has an address that only its page knows


@pytest.mark.slow
def test_a_plain_kernel_is_neither() -> None:
    name, html, links = json.loads(in_kernel()[-1])
    assert name == "OTHER"
    assert "forward port" not in html
    assert "through Jupyter" in links


def test_outside_a_kernel_nothing_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VSCODE_PID", "1")  # a script that VS Code starts
    assert detect_frontend() is Frontend.OTHER


def test_the_address_follows_the_proxy_that_vs_code_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VSCODE_PROXY_URI", "CODESPACE_NAME", "GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN"):
        monkeypatch.delenv(name, raising=False)
    assert vs_code_url("5006", "?key=k") == URL
    monkeypatch.setenv("CODESPACE_NAME", "tall-tree")
    monkeypatch.setenv("GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN", "app.github.dev")
    assert vs_code_url("5006", "?key=k") == "https://tall-tree-5006.app.github.dev/?key=k"
    monkeypatch.setenv("VSCODE_PROXY_URI", "https://code.example/proxy/{{port}}/")
    assert vs_code_url("5006", "?key=k") == "https://code.example/proxy/5006/?key=k"


def test_an_address_that_the_user_names_keeps_the_key_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSNB_DASHBOARD_URL", "https://host/proxy/{port}/")
    assert 'href="https://host/proxy/5006/?key=k"' in dashboard_links(URL)
