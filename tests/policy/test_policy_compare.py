"""What differs in the files of two revisions, as far as it can be shown."""

from __future__ import annotations

from policies import EU, US

from kvrun.policy.compare import diff_files


def test_files_are_added_removed_and_changed_line_by_line() -> None:
    changed = EU.replace("ttl: 7d", "ttl: 1d")
    found = diff_files({"a.yaml": US, "eu.yaml": EU, "same.yaml": US},
                       {"b.yaml": US, "eu.yaml": changed, "same.yaml": US})  # fmt: skip
    assert [(file.path, file.kind) for file in found] == [
        ("a.yaml", "removed"),
        ("b.yaml", "added"),
        ("eu.yaml", "changed"),
    ]
    assert all(line.startswith("-") for line in found[0].lines[1:])
    assert all(line.startswith("+") for line in found[1].lines[1:])
    lines = found[2].lines
    assert [line for line in lines if line[0] in "+-"] == ["-  ttl: 7d", "+  ttl: 1d"]
    assert lines[0].startswith("@@ ")


def test_a_line_of_dashes_is_a_line_like_another() -> None:
    (found,) = diff_files({"a.yaml": "--\nx\n"}, {"a.yaml": "++\nx\n"})
    assert [line for line in found.lines if line[0] in "+-"] == ["---", "+++"]


def test_of_very_long_files_no_lines_are_compared() -> None:
    long = {f"{n}.yaml": "a: b\n" * 1900 for n in range(20)}
    found = diff_files(long | {"huge.yaml": "x\n" * 5000}, {})
    assert found[-1].cut
    assert found[-1].lines == ()
    assert not found[0].cut
    assert sum(not file.cut for file in found) == 10, "all of them together are bounded too"
