"""A model by its hub id, from a hub on loopback that lists and serves as huggingface.co does."""

import hashlib
import logging
import multiprocessing
import os
import random
import threading

import pytest

from backend.answer.weights import measure
from backend.errors import FetchError
from backend.fetch import cache as caching
from backend.fetch.cache import Cache
from backend.fetch.fetch import How, fetched
from backend.fetch.model_manifest import Manifest, read_manifest
from tests.fakes.model_places import COMMIT

WEIGHTS = random.Random(1).randbytes(3 << 20)
OTHER = random.Random(2).randbytes(3 << 20)
MODEL = {"config.json": b'{"a": 1}', "tokenizer.json": b"{}", "model.safetensors": WEIGHTS}
NAME = "acme/small"
FILE = f"/{NAME}/resolve/{COMMIT}/model.safetensors"


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_model_is_fetched_once_and_its_digest_is_that_of_the_record(hub, how):
    hub.add(NAME, MODEL)
    first = fetched(NAME, how())
    assert contents(first.path) == MODEL
    assert first.name == "small"
    assert first.kept.manifest.sha256 == measure(first.path).sha256
    asked = len(hub.asked)
    assert fetched(NAME, how()).path == first.path
    assert hub.paths()[asked:] == [f"/api/models/{NAME}/revision/main"]  # the name may lead elsewhere by now


def test_a_commit_that_is_here_is_not_asked_for_again(hub, how):
    hub.add(NAME, MODEL)
    first = fetched(f"{NAME}@{COMMIT}", how())
    hub.asked.clear()
    assert fetched(f"hf://{NAME}@{COMMIT}", how()).path == first.path
    assert hub.asked == []


def test_code_pickles_and_what_no_backend_reads_stay_there(hub, how):
    hub.add(NAME, {**MODEL, "modeling_small.py": b"import os", "pytorch_model.bin": b"\x80", "README.md": b"#"})
    assert contents(fetched(NAME, how()).path) == MODEL


def test_a_model_of_pickles_alone_is_refused(hub, how):
    hub.add(NAME, {"config.json": b"{}", "pytorch_model.bin": b"\x80"})
    with pytest.raises(FetchError, match=r"neither config.json with safetensors nor a GGUF file; convert it"):
        fetched(NAME, how())


def test_of_several_gguf_files_one_has_to_be_named(hub, how):
    hub.add(NAME, {"small.Q4_0.gguf": b"GGUF4", "small.Q8_0.gguf": b"GGUF8", "README.md": b""})
    with pytest.raises(FetchError, match=r"several GGUF files \(small.Q4_0.gguf, small.Q8_0.gguf\); name one"):
        fetched(NAME, how())
    found = fetched(f"{NAME}/small.Q8_0.gguf@main", how())
    assert (found.path.name, found.path.read_bytes()) == ("small.Q8_0.gguf", b"GGUF8")
    assert found.kept.manifest.sha256 == hashlib.sha256(b"GGUF8").hexdigest()
    with pytest.raises(FetchError, match="does not list that file"):
        fetched(f"{NAME}/small.Q2_K.gguf", how())


# --- cuts ------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_cut_is_continued_where_it_broke_off(hub, how):
    hub.add(NAME, MODEL)
    hub.cuts[FILE] = [1 << 20, 1 << 20]
    assert contents(fetched(NAME, how()).path) == MODEL
    ranges = [headers.get("range") for path, headers in hub.asked if path == FILE]
    assert ranges == [None, "bytes=1048576-", "bytes=2097152-"]


def test_a_host_that_knows_no_ranges_sends_all_of_it_again(hub, how):
    hub.add(NAME, MODEL)
    hub.honours_ranges = False
    hub.cuts[FILE] = [1 << 20]
    assert contents(fetched(NAME, how()).path) == MODEL


def test_a_second_attempt_goes_on_where_the_first_was_given_up(hub, how):
    hub.add(NAME, MODEL)
    hub.cuts[FILE] = [1 << 20, 0, 0, 0]
    with pytest.raises(FetchError, match=r"model.safetensors: .* broke off.*; run it again to continue from there"):
        fetched(NAME, how())
    assert not list(how().cache.glob("small-*"))
    hub.asked.clear()
    assert contents(fetched(NAME, how()).path) == MODEL
    assert [headers.get("range") for path, headers in hub.asked if path == FILE] == ["bytes=1048576-"]


def test_what_an_earlier_attempt_left_of_another_content_is_fetched_anew(hub, how):
    hub.add(NAME, MODEL)
    hub.cuts[FILE] = [1 << 20, 0, 0, 0]
    with pytest.raises(FetchError):
        fetched(NAME, how())
    (part,) = (how().cache / ".incoming").glob("*/model.safetensors")
    part.write_bytes(OTHER[: 1 << 20])
    assert contents(fetched(NAME, how()).path) == MODEL


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])  # by SHA-256, and by git's
def test_other_bytes_than_the_listing_names_are_refused_and_not_kept(hub, how, name):
    hub.add(NAME, MODEL)
    right = hub.files[f"/{NAME}/resolve/{COMMIT}/{name}"]
    hub.files[f"/{NAME}/resolve/{COMMIT}/{name}"] = right[:-1] + bytes([right[-1] ^ 1])
    with pytest.raises(FetchError, match=f"{name} from 127.0.0.1 is not what its digest says"):
        fetched(NAME, how())
    assert not list(how().cache.glob("small-*"))
    hub.files[f"/{NAME}/resolve/{COMMIT}/{name}"] = right
    assert contents(fetched(NAME, how()).path) == MODEL


@pytest.mark.parametrize("more", [b"x", b"x" * (1 << 20)])
def test_a_file_that_is_longer_than_it_is_listed_is_refused(hub, how, more):
    hub.add(NAME, MODEL)
    hub.files[FILE] = WEIGHTS + more
    with pytest.raises(FetchError, match=r"is longer at 127.0.0.1 than it is listed"):
        fetched(NAME, how())


def test_a_place_that_answers_500_a_few_times_is_asked_again(hub, how):
    hub.add(NAME, MODEL)
    answer, failing = hub.body, [1, 1]

    def body(path, *rest):
        if path == FILE and failing:
            failing.pop()
            from tests.fakes.model_places import Answer

            raise Answer(503)
        return answer(path, *rest)

    hub.body = body
    assert contents(fetched(NAME, how()).path) == MODEL


# --- pins, locks, offline --------------------------------------------------------------------------------------------


def test_a_pin_holds_for_what_is_fetched_and_for_what_is_here(hub, how):
    hub.add(NAME, MODEL)
    digest = fetched(NAME, how()).kept.manifest.sha256
    hub.asked.clear()
    assert fetched(NAME, how(sha256=digest)).kept.manifest.sha256 == digest
    assert hub.asked == []  # what is pinned and here needs nobody
    hub.add(NAME, {**MODEL, "model.safetensors": OTHER}, commit="b" * 40)
    assert fetched(NAME, how(sha256=digest)).kept.manifest.sha256 == digest
    wrong = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    with pytest.raises(FetchError, match=rf"has the weights [0-9a-f]+ and not {wrong}; find out who changed"):
        fetched(NAME, how(sha256=wrong))


def test_a_pinned_model_that_was_changed_on_disk_is_refused(hub, how):
    hub.add(NAME, MODEL)
    first = fetched(NAME, how())
    (first.path / "model.safetensors").write_bytes(OTHER)
    with pytest.raises(FetchError, match=r"model.safetensors in .* was changed; delete that folder"):
        fetched(NAME, how(sha256=first.kept.manifest.sha256))


@pytest.mark.parametrize("change", ["shorter", "more", "link", "gone"])
def test_a_folder_that_is_not_what_was_fetched_is_refused_without_a_pin_too(hub, how, change, tmp_path):
    hub.add(NAME, MODEL)
    folder = fetched(NAME, how()).path
    if change == "more":
        (folder / "chat_template.jinja").write_text("{{ x }}")
    else:
        (folder / "config.json").unlink()
    if change == "shorter":
        (folder / "config.json").write_bytes(b"{}")
    if change == "link":
        (tmp_path / "config.json").write_bytes(MODEL["config.json"])
        (folder / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(FetchError, match="was changed; delete that folder"):
        fetched(NAME, how())


def test_a_lock_file_refuses_another_file_before_it_is_fetched(hub, how, tmp_path):
    hub.add(NAME, MODEL)
    lock = tmp_path / "lock.json"
    lock.write_text(fetched(NAME, how()).kept.manifest.text())
    hub.add(NAME, {**MODEL, "model.safetensors": OTHER}, commit="b" * 40)
    hub.asked.clear()
    with pytest.raises(FetchError, match=r"model.safetensors is not what the lock file says; find out"):
        fetched(NAME, how(lock=read_manifest(lock), cache=tmp_path / "elsewhere"))
    assert len(hub.asked) == 1
    hub.add(NAME, MODEL)
    assert fetched(NAME, how(lock=read_manifest(lock), cache=tmp_path / "elsewhere")).name == "small"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("config.json", "../config.json"),
        lambda text: text.replace("config.json", "config.py"),
        lambda text: text.replace('"size": 8', '"size": 9').replace(
            hashlib.sha256(MODEL["config.json"]).hexdigest(), "0" * 64
        ),
        lambda text: text[:-9],
        lambda text: "{}",
    ],
)
def test_a_lock_file_that_was_changed_is_none(hub, how, tmp_path, change):
    hub.add(NAME, MODEL)
    lock = tmp_path / "lock.json"
    lock.write_text(change(fetched(NAME, how()).kept.manifest.text()))
    with pytest.raises(FetchError, match="is no lock file, or was changed"):
        read_manifest(lock)


def test_pin_and_lock_that_disagree_are_refused(hub, how):
    hub.add(NAME, MODEL)
    manifest = fetched(NAME, how()).kept.manifest
    with pytest.raises(FetchError, match="name different weights"):
        fetched(NAME, how(lock=manifest, sha256="0" * 64))


def test_offline_takes_what_is_here_and_asks_nobody(hub, how):
    hub.add(NAME, MODEL)
    with pytest.raises(FetchError, match="is not here; fetch it once without --offline"):
        fetched(NAME, how(offline=True))
    first = fetched(NAME, how())
    hub.asked.clear()
    assert fetched(NAME, how(offline=True)).path == first.path
    assert hub.asked == []


def test_a_hub_that_is_away_is_said_and_nothing_else_is_taken_silently(hub, how, monkeypatch):
    hub.add(NAME, MODEL)
    fetched(NAME, how())
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FetchError, match=r"127.0.0.1 does not list acme/small .*--offline"):
        fetched(NAME, how())


def test_the_next_revision_takes_the_files_that_did_not_change_from_this_host(hub, how):
    hub.add(NAME, MODEL)
    first = fetched(NAME, how())
    hub.add(NAME, {**MODEL, "config.json": b'{"a": 2}'}, commit="b" * 40)
    hub.asked.clear()
    second = fetched(NAME, how())
    assert second.path != first.path
    assert contents(first.path) == MODEL
    assert contents(second.path) == {**MODEL, "config.json": b'{"a": 2}'}
    assert not any(path.endswith(".safetensors") for path in hub.paths())


def test_a_path_of_this_host_is_held_to_its_pin(how, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    digest = measure(folder).sha256
    assert fetched(str(folder), how(sha256=digest)).kept is None
    with pytest.raises(FetchError, match="has the weights"):
        fetched(str(folder), how(sha256=digest[::-1]))


# --- names, redirects, credentials -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["../evil.json", "/e/evil.safetensors", "..\\evil.safetensors", ".hidden.json", "a\nb.json", "x" * 300 + ".gguf"],
)
def test_a_name_that_leads_out_of_the_folder_is_refused(hub, how, name, tmp_path):
    hub.add(NAME, MODEL)
    hub.listed[NAME, COMMIT].append({"rfilename": name, "size": 1, "blobId": "0" * 40})
    before = set(tmp_path.rglob("*"))
    try:
        assert contents(fetched(NAME, how()).path) == MODEL  # names of no file of a model are passed over
    except FetchError as error:
        assert "which is no file of a model; do not use it" in str(error)
    assert not [path for path in set(tmp_path.rglob("*")) - before if "evil" in path.name or "hidden" in path.name]


def test_two_names_that_are_one_file_on_some_disks_are_refused(hub, how):
    hub.add(NAME, {**MODEL, "CONFIG.json": b"{}"})
    with pytest.raises(FetchError, match="two files of one name"):
        fetched(NAME, how())


@pytest.mark.parametrize("size", [-1, None, 1 << 60])
def test_a_size_that_no_file_has_is_refused(hub, how, size):
    hub.add(NAME, MODEL)
    hub.listed[NAME, COMMIT][0]["size"] = size
    with pytest.raises(FetchError, match="is no file of a model"):
        fetched(NAME, how())


def test_a_link_in_the_cache_is_not_followed(hub, how, tmp_path):
    hub.add(NAME, MODEL)
    hub.cuts[FILE] = [9, 0, 0, 0]
    with pytest.raises(FetchError):
        fetched(NAME, how())
    (part,) = (how().cache / ".incoming").glob("*/model.safetensors")
    part.unlink()
    (tmp_path / "victim").write_bytes(b"mine")
    part.symlink_to(tmp_path / "victim")
    with pytest.raises(FetchError):
        fetched(NAME, how())
    assert (tmp_path / "victim").read_bytes() == b"mine"


def test_a_token_goes_to_the_hub_and_not_where_it_redirects(hub, cdn, how, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    hub.token, hub.cdn = "hf_secret", cdn
    hub.add(NAME, MODEL)
    with pytest.raises(FetchError, match=r"shows no model acme/small; .*HF_TOKEN"):
        fetched(NAME, how())
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert contents(fetched(NAME, how()).path) == MODEL
    assert cdn.paths() == ["/blob/model.safetensors"]
    assert "authorization" not in cdn.asked[0][1]
    assert "hf_secret" not in caplog.text
    assert "SIGNED" not in "".join(record.getMessage() for record in caplog.records if record.levelno >= logging.INFO)


@pytest.mark.parametrize(
    "target", ["http://192.0.2.1/x", "ftp://127.0.0.1/x", "http://user:pw@127.0.0.1/x", "//[", "file:///etc"]
)
def test_a_redirect_out_of_tls_is_not_followed(hub, how, target):
    hub.add(NAME, MODEL)
    hub.redirects[FILE] = target
    with pytest.raises(FetchError, match=r"redirects|without TLS"):
        fetched(NAME, how())


def test_redirects_in_circles_end(hub, how):
    hub.add(NAME, MODEL)
    hub.redirects[FILE] = f"{hub.url}{FILE}"
    with pytest.raises(FetchError, match="redirects in circles"):
        fetched(NAME, how())


def test_another_host_is_not_asked_without_tls(how, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://192.0.2.1")
    with pytest.raises(FetchError, match=r"192.0.2.1 would be asked without TLS; use https://"):
        fetched(NAME, how())


def test_a_revision_that_there_is_not_is_named(hub, how):
    hub.add(NAME, MODEL)
    with pytest.raises(FetchError, match="acme/small has no revision v9; name a branch"):
        fetched(f"{NAME}@v9", how())


def test_a_disk_without_room_is_told_before_anything_is_fetched(hub, how, monkeypatch):
    hub.add(NAME, MODEL)
    monkeypatch.setattr(caching, "SPARE", 1 << 62)
    with pytest.raises(FetchError, match=r"needs 0.00 GB more and the disk of .* free; delete something"):
        fetched(NAME, how())
    assert len(hub.asked) == 1


# --- two of everything -----------------------------------------------------------------------------------------------


def _in_a_process(cache, url, out):
    os.environ["HF_ENDPOINT"] = url
    out.put(str(fetched(NAME, How(cache=cache)).path))


def test_a_second_process_waits_and_takes_what_the_first_brought(hub, how):
    hub.add(NAME, MODEL)
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    processes = [context.Process(target=_in_a_process, args=(how().cache, hub.url, out)) for _ in range(2)]
    for process in processes:
        process.start()
    paths = {out.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(paths) == 1
    assert hub.paths().count(FILE) == 1


def test_one_that_waits_goes_on_where_the_other_was_cut(hub, how):
    hub.add(NAME, MODEL)
    hub.cuts[FILE] = [1 << 20, 0, 0]
    ends = []

    def run():
        try:
            ends.append(contents(fetched(NAME, how()).path) == MODEL)
        except FetchError:
            ends.append(False)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ends) == 2 and any(ends), "the one that waited took over"
    assert contents(fetched(NAME, how()).path) == MODEL


def test_two_models_of_one_short_name_lie_apart(hub, how):
    hub.add(NAME, MODEL)
    hub.add("other/small", {**MODEL, "model.safetensors": OTHER})
    assert fetched(NAME, how()).path != fetched("other/small", how()).path


def test_a_cache_that_cannot_be_made_is_named(hub, how, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match=r"cannot keep models: .*; name another folder"):
        Cache(tmp_path / "file" / "cache")


def test_a_manifest_reads_back_as_it_was_written(hub, how):
    hub.add(NAME, MODEL)
    manifest = fetched(NAME, how()).kept.manifest
    assert Manifest.model_validate_json(manifest.text()) == manifest
