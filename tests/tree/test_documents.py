"""What texts name is there: every path in code, link and import, so that nobody follows one into nothing."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["CONTRIBUTING.md", "README.md", "SECURITY.md", "shim/README.md", "shim/sim/README.md",
             *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]  # fmt: skip
PATH = re.compile(r"[\w.-]+(/[\w.*-]+)*/?")
NVIDIAS = {"cuda.h"}
BUILT = {"_gpushare.py"}  # by `make`, in .build
SOURCE = re.compile(r"[\w-]+\.(py|c|h|cu|js|css|html|md|toml|mk|txt)")


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return listed.stdout.splitlines()


def test_every_path_that_a_document_names_exists(tracked):
    tops = {PurePosixPath(name).parts[0] for name in tracked}
    names = {PurePosixPath(name).name for name in tracked}
    missing = [
        f"{document}:{line}: {path}"
        for document in DOCUMENTS
        for line, path in paths_in(document)
        if (path.split("/")[0] in tops and not there(path, document))
        or (SOURCE.fullmatch(path) and path not in names | NVIDIAS)
    ]
    assert not missing, "\n".join(missing)


def test_every_document_that_the_code_names_exists(tracked):
    documents = {PurePosixPath(name).name for name in tracked if name.endswith(".md")}
    missing = [
        f"{name}: {document}"
        for name in tracked
        if name.endswith((".py", ".c", ".h", ".js", ".css", ".html"))
        for document in re.findall(r"[\w-]+\.md\b", (ROOT / name).read_text())
        if document not in documents
    ]
    assert not missing, "\n".join(missing)


def test_every_link_within_the_documents_leads_somewhere():
    missing = []
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / document).read_text()):
            page, _, anchor = target.partition("#")
            if ":" in page:
                continue
            goal = (ROOT / document).parent / page if page else ROOT / document
            if not goal.exists() or (anchor and anchor not in anchors(goal)):
                missing.append(f"{document}: {target}")
    assert not missing, "\n".join(missing)


def test_a_value_that_a_document_sets_in_a_file_has_no_remark_behind_it():
    """systemd's EnvironmentFile= takes the remark for a part of the value; a shell would not."""
    remarked = [
        f"{document}: {line}"
        for document in DOCUMENTS
        for line in (ROOT / document).read_text().splitlines()
        if re.match(r"[A-Z][A-Z_]+=[^$(]*\s#", line)
    ]
    assert not remarked, "\n".join(remarked)


def test_every_module_that_the_code_speaks_of_exists(tracked):
    missing = [
        f"{source}:{number}: {name}"
        for source in tracked
        if source.startswith(("appliance/", "scheduler/", "shim/", "static/", "web/"))
        and source.endswith((".py", ".c", ".h", ".js", ".css"))
        for number, line in enumerate((ROOT / source).read_text().splitlines(), 1)
        for name in re.findall(r"(?<![\w.*-])\w[\w/]*\.(?:py|js|css)\b(?!\()", line)
        if name not in BUILT and not any(f"/{path}".endswith(f"/{name}") for path in tracked)
    ]
    assert not missing, "\n".join(missing)


def test_the_shims_map_has_every_file(tracked):
    text = (ROOT / "shim" / "README.md").read_text()
    files = [PurePosixPath(path) for path in tracked if re.fullmatch(r"shim/(charging/|hooks/)?\w+\.[ch]", path)]
    named = [file for file in files if file.name in text or file.with_suffix(".c").name in text]
    assert [str(file) for file in files if file not in named and not file.name.startswith("hooks_")] == []


def test_every_module_of_ours_that_a_text_imports_exists(tracked):
    """Programs in strings and documents are seen by no linter, and move with nobody."""
    missing = []
    for name in tracked:
        if not name.endswith((".py", ".md")):
            continue
        for module in re.findall(
            r"^\s*(?:from|import) ((?:web|scheduler|appliance|shim)(?:\.\w+)*) ", source(name), re.M
        ):
            place = ROOT / module.replace(".", "/")
            if not place.is_dir() and not place.with_suffix(".py").exists():
                missing.append(f"{name}: {module}")
    assert not missing, "\n".join(missing)


def source(name: str) -> str:
    path = ROOT / name
    return path.read_text() if path.is_file() else ""


def paths_in(document: str) -> Iterator[tuple[int, str]]:
    """The words in code that look like paths, with their lines; what is shown in a block is another test's."""
    text = re.sub(
        r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), (ROOT / document).read_text(), flags=re.M | re.S
    )
    for number, line in enumerate(text.splitlines(), 1):
        for code in re.findall(r"`([^`]+)`", line):
            yield from ((number, word) for word in code.split() if PATH.fullmatch(word))


def there(path: str, document: str) -> bool:
    """From the root, or from where the document is; `*` stands for any name."""
    return any(any(place.glob(path.rstrip("/"))) for place in (ROOT, (ROOT / document).parent))


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in a link."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
