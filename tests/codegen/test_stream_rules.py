"""A rule of the spec becomes a check function in Python and in JavaScript."""

from __future__ import annotations

from pathlib import Path

from codegen.explorer import NAME
from tests.codegen.spec_copy import Run, SpecCopy

RULE = """\

  end-as-prepared:
    doc: The end of a prepared transaction is after its Prepare.
    source: FinishPreparedTransaction
    roles: [commit_prepared, rollback_prepared]
    needs: version >= 3 and streaming != 'off'
    in_blocks: true
    unless: message is rollback_prepared or not (pending_types or prepare)
    cases:
      - when: not pending_types and lsn is not None and prepare.lsn >= lsn
        at: lsn
        text: "{lsn:name} of {gid} is {lsn}"
      - {at: gid, text: "no `Type` for ${xid} may come between"}
"""

PYTHON = '''
def end_as_prepared(state: CheckedStream, message: Any) -> Breach | None:
    """Return how a message violates the rule end-as-prepared, or None.

    The end of a prepared transaction is after its Prepare.
    """
    xid = message.xid
    gid = message.gid
    lsn = meaning_of(message, "lsn")
    role = ROLES[type(message)]
    prepare = state.prepare_of(gid)
    if role == "rollback_prepared" or not (state.pending_types or prepare):
        return None
    if not state.pending_types and lsn is not None and meaning_of(prepare, "lsn") >= lsn:
        return _name(message, "lsn"), f"{_name(message, 'lsn')} of {gid!r} is {format_lsn(lsn)}"
    return "gid", f"no `Type` for ${xid} may come between"
'''

TABLE = """
    "end-as-prepared": SpecRule(
        doc="The end of a prepared transaction is after its Prepare.",
        source="FinishPreparedTransaction",
        roles=(
            "commit_prepared",
            "rollback_prepared",
        ),
        check=end_as_prepared,
        when=lambda options: options.proto_version >= 3 and options.streaming != "off",
        in_blocks=True,
    ),
"""

JAVASCRIPT = r"""
  {
    name: "end-as-prepared", on: ["commit_prepared", "rollback_prepared"], inBlocks: true, when: ({ version, streaming, twoPhase }) => version >= 3 && streaming !== "off",
    check(state, message) {
      const xid = message.means.xid;
      const gid = message.means.gid;
      const lsn = message.means.lsn;
      const role = message.layout.role;
      const prepare = state.prepareOf(gid);
      if (role === "rollback_prepared" || !(state.pendingTypes.length > 0 || prepare)) return null;
      if (state.pendingTypes.length === 0 && lsn != null && prepare.lsn >= lsn) {
        return [named(message, "lsn"), `${named(message, "lsn")} of ${quote(gid)} is ${formatLsn(lsn)}`];
      }
      return [named(message, "gid"), `no \`Type\` for $${xid} may come between`];
    },
  },
"""  # noqa: E501


def generated(run: Run, spec: SpecCopy, out: Path) -> tuple[str, str]:
    """Return the generated Python module with the rules, and the page with the rules in JavaScript."""
    assert run("--release", "--spec", spec.folder, "--out", out).code == 0
    python, page = (out / name for name in ("logicalrep/_rules.py", NAME))
    return python.read_text(encoding="utf-8"), page.read_text(encoding="utf-8")


def test_a_rule_becomes_a_function_in_both_languages(run: Run, spec: SpecCopy, tmp_path: Path) -> None:
    spec.add("rules:", RULE, "rules.yaml")
    python, page = generated(run, spec, tmp_path / "out")
    assert PYTHON in python
    assert TABLE in python
    assert JAVASCRIPT in page


def test_a_field_with_several_names_is_read_by_its_meaning(run: Run, spec: SpecCopy, tmp_path: Path) -> None:
    block = (
        "    fields:\n      - {name: xid, type: xid, means: xid, doc: Xid of the top-level transaction.}\n"
    )
    spec.replace(
        f"{block}      - {{name: first", f"{block.replace('name: xid', 'name: top')}      - {{name: first"
    )
    spec.write("{}", "released.json")
    python, _ = generated(run, spec, tmp_path / "out")
    assert '\n    xid = meaning_of(message, "xid")\n    if xid < 3:\n' in python
    assert '\n        return _name(message, "xid"), f"transaction ids are 3 or higher, not {xid}"' in python
    assert "\n    xid = message.top\n    first_block = message.first_stream_segment\n" in python


def test_the_page_lists_a_rule_that_only_the_command_line_checks(
    run: Run, spec: SpecCopy, tmp_path: Path
) -> None:
    cases = RULE.index("    unless:")
    spec.add("rules:", f"{RULE[:cases]}    command_line: ends of transactions\n", "rules.yaml")
    python, page = generated(run, spec, tmp_path / "out")
    assert TABLE.replace("        check=end_as_prepared,\n", "") in python
    assert '  "ends of transactions": ["end-as-prepared"],\n' in page
    assert 'name: "end-as-prepared"' not in page
