"""Tests statements: figures of prose that the recorded results determine."""

from studies.pages import RECORDED, in_repository, recorded
from studies.statements import check
from studies.statements.check import all_statements, differences_in_prose
from studies.statements.statement import Setting, Statement, prose, section_of, uncovered, wrong

PAGE = """# Results

**J of `steered` is 0.070 nats above that of
`uniform`** ([0.036 to 0.105](verdict.md#rule-12)) with Mamba-2, at 95 %.

![a figure of 7](7.png)

```bash
run --steps=5
```

<!-- begin some.table -->
| 8 |
<!-- end some.table -->

## Costs

It took 1,200 steps.
"""
TEXT = "J of `steered` is {:.3f} nats above that of `uniform` ({:.3f} to {:.3f})"
LEVEL = Setting("95 %", "the level")


def statement(*figures, text=TEXT):
    return Statement("page.md", text, figures)


def test_emphasis_line_breaks_and_links_do_not_matter():
    assert list(wrong([statement(0.0701, 0.0359, 0.1049)], {"page.md": PAGE})) == []


def test_a_wrong_figure_is_named_with_its_page_and_the_recorded_text():
    (found,) = wrong([statement(0.071, 0.0359, 0.1049)], {"page.md": PAGE})
    assert found == (
        "page.md: the records give: J of `steered` is 0.071 nats above that of `uniform` (0.036 to 0.105)"
    )


def test_figures_of_prose_have_to_be_in_a_field_or_a_setting():
    text, holds = prose(PAGE), statement(0.0701, 0.0359, 0.1049)
    (found,) = uncovered(text, [holds], [LEVEL])
    assert found.startswith("1,200 is in no statement: ... ") and "It took [1,200] steps." in found
    assert [one.split()[0] for one in uncovered(text, [holds], [])] == ["95", "1,200"]
    # A figure in the words of a statement is not computed.
    words = statement(text="It took 1,200 steps.")
    assert [one.split()[0] for one in uncovered(text, [holds, words], [LEVEL])] == ["1,200"]
    assert list(uncovered(text, [holds, statement(1200, text="took {:,} steps")], [LEVEL])) == []
    # A statement that does not hold covers nothing.
    assert len(list(uncovered(text, [statement(0.071, 0.0359, 0.1049)], [LEVEL]))) == 4


def test_a_section_ends_at_the_next_heading():
    assert prose(section_of(PAGE, "## Costs")) == "It took 1,200 steps."
    assert prose(section_of(PAGE, "# Results")).endswith("with Mamba-2, at 95 %.")
    assert section_of(PAGE, "## Other") is None


def test_a_missing_heading_and_a_setting_without_a_figure_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    monkeypatch.setattr(check, "SECTIONS", (("page.md", "## Costs"), ("page.md", "## Other")))
    monkeypatch.setattr(check, "SETTINGS", (LEVEL,))
    figure, heading, setting = differences_in_prose([])
    assert figure.startswith("page.md: ## Costs: 1,200 is in no statement")
    assert heading == "page.md: lacks the line '## Other'"
    assert setting == "no covered section has the setting '95 %'"


def test_the_pages_state_the_recorded_figures():
    with in_repository():
        records = {
            (study.name, scale): recorded(study, scale, folder).read_results()
            for study, scale, folder in RECORDED
        }
        assert list(differences_in_prose(all_statements(records))) == []
