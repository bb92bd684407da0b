"""The examples that need clients, run as a reader would run them."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiothrottle.testing import RateLimitedServer
from tests.llm.fake_api import FakeOpenAI
from tests.project.test_examples import (
    EXAMPLES,
    NEEDS,
    Running,
    check_output,
    ended,
    lines_of,
    running_at_once,
    started,
)
from tests.support.background import ENVIRONMENT
from tests.support.servers import Valkey


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[Running]:
    with running_at_once(NEEDS) as examples:
        yield examples


@pytest.mark.parametrize("example", NEEDS)
def test_example_runs_without_arguments(example: str, running: Running) -> None:
    for package in NEEDS[example]:
        pytest.importorskip(package)
    printed = check_output(example, running)
    if example == "fastapi_service.py":
        numbers = re.findall(r"\d+(?= answered| asked| requests)", printed)
        answered, retried, upstream = map(int, numbers)
        assert answered == upstream >= 10
        assert answered + retried == 50


@pytest.mark.parametrize(
    ("line", "variable"),
    [
        ("fastapi_service.py https://example.org", "REDIS_URL to"),
        ("openai_batch.py prompts.jsonl", "OPENAI_API_KEY to"),
        ("s3_copy.py s3://a/ s3://b/", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to"),
    ],
)
async def test_real_api_needs_a_variable(
    line: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, *arguments = line.split()
    for package in NEEDS.get(example, []):
        pytest.importorskip(package)
    for name in ("OPENAI_API_KEY", "REDIS_URL", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delitem(ENVIRONMENT, name, raising=False)
    # boto looks in files and on the network, too.
    others = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    status, _, messages = await ended(example, *arguments, **others)
    assert status == 2
    assert "Traceback" not in messages
    assert f"set {variable}" in " ".join(messages.split())


async def test_openai_batch_reads_a_file(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    prompts, names = tmp_path / "prompts.jsonl", [f"no. {number}" for number in range(3)]
    prompts.write_text("\n".join(json.dumps({"id": it, "prompt": "Say hello."}) for it in names))
    fake = FakeOpenAI(failures=(400, 500))  # one is an error, the other one is retried
    async with fake.serve() as url:
        variables = {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": f"{url}/v1"}
        _, printed, _ = await ended("openai_batch.py", prompts, **variables)
    answers = lines_of(printed)
    assert {answer["id"] for answer in answers} == {*names}
    assert sorted("error" in answer for answer in answers) == [False, False, True]
    assert fake.requests == 4


# ---- worker_queue.py -------------------------------------------------------------------------


async def test_workers_of_a_queue_share_a_limit(own_valkey: Valkey) -> None:
    pytest.importorskip("taskiq_redis")
    store = {"REDIS_URL": f"redis://127.0.0.1:{own_valkey.port}"}
    options = ["--app-dir", EXAMPLES, "--workers", "2", "--max-async-tasks", "5"]
    taskiq = [sys.executable, "-m", "taskiq", "worker"]
    async with RateLimitedServer() as server:
        worker = await started(*taskiq, *options, "worker_queue:broker", **store)
        assert worker.stderr is not None
        listening = 0
        while listening < 2:
            line = await worker.stderr.readline()
            assert line, "the workers ended"
            listening += b"Listening started" in line
        _, printed, _ = await ended("worker_queue.py", server.url, **store)
        worker.terminate()
        _, messages = await worker.communicate()
    assert printed == "40 tasks ended with status 200\n", messages.decode()
    assert server.audit.sent == 40
    # 20 on an idle machine; two limits would admit all 40.
    assert server.audit.greatest_count(1.0) <= 25


# ---- progress.ipynb --------------------------------------------------------------------------

NOTEBOOK = EXAMPLES / "progress.ipynb"


def test_notebook_runs_with_a_progress_bar() -> None:
    for package in ("ipykernel", "tqdm"):
        pytest.importorskip(package)
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute(env=ENVIRONMENT)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    assert "60 of 60 requests succeeded" in printed
    assert "60/60" in printed  # the bar


def test_notebook_is_committed_without_output() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
