from __future__ import annotations

from pathlib import Path

import pytest

from dsnb.storage.filesystem import filesystem_of

LINES = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /mnt rw shared:2 - tmpfs tmpfs rw
31 30 0:26 / /mnt/team\\040data rw shared:3 - nfs4 server:/data rw
32 22 0:27 / /odd rw - fuse.sshfs host: rw
33 22 0:28 / /twice rw - ext4 /dev/b rw
34 33 0:29 / /twice rw - cifs //c rw
35 22 0:28 / /new rw - somethingnew /dev/b rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> str:
    path = tmp_path / "mountinfo"
    path.write_text(LINES)
    return str(path)


@pytest.mark.parametrize(
    "path,kind,local,network",
    [
        ("/", "ext4", True, False),
        ("/mnt", "tmpfs", True, False),
        ("/mnt/team data/cache", "nfs4", False, True),
        ("/mnt/team dat", "tmpfs", True, False),
        ("/odd/cache", "fuse.sshfs", False, True),
        ("/twice/cache", "cifs", False, True),
        ("/new/cache", "somethingnew", False, False),
    ],
)
def test_the_type_of_the_innermost_mount_decides(
    mounts: str, path: str, kind: str, local: bool, network: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.path.exists", lambda _: True)
    found = filesystem_of(path, mounts)
    assert (found.kind, found.local, found.network) == (kind, local, network)


def test_a_folder_that_is_not_there_yet_lies_where_the_one_above_does(tmp_path: Path) -> None:
    assert filesystem_of(str(tmp_path / "a" / "b")) == filesystem_of(str(tmp_path))


def test_where_nothing_lists_the_mounts_nothing_counts_as_local(tmp_path: Path) -> None:
    found = filesystem_of(str(tmp_path), str(tmp_path / "none"))
    assert (found.kind, found.local) == ("unknown", False)


def test_a_mount_is_told_with_its_place(mounts: str) -> None:
    assert str(filesystem_of("/mnt", mounts)) == "tmpfs at /mnt"
