from __future__ import annotations

import pytest

from dsnb.dispatcher.handlers.datasets import known_dataset
from dsnb.elements.spec import TensorSpec, spec_to_json
from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dsnb.wire.messages import ForgetRequest
from tests.dispatcher.simulation import CONFIG, Service

GC_S = CONFIG.job_gc_timeout_ms / 1000
NUMBERS = spec_to_json(TensorSpec((), "i8"))
PAIRS = spec_to_json((TensorSpec((), "i8"), TensorSpec((3,), "f4")))


def read_once(service: Service, dataset_id: str) -> None:
    service.close(service.join(dataset_id))


def test_the_same_pipeline_has_one_id() -> None:
    service = Service()
    assert service.register(5) == service.register(5)
    assert service.register(5) != service.register(6)


def test_the_same_pipeline_in_another_compression_is_another_dataset() -> None:
    service = Service()
    assert service.register(5) != service.register(5, compression="NONE")


def test_a_pipeline_without_a_fingerprint_is_equal_to_no_other() -> None:
    service = Service()
    assert service.register(5, fingerprint="") != service.register(5, fingerprint="")


def test_a_chosen_id_is_kept_and_given_out_to_nobody_else() -> None:
    service = Service()
    number = service.core.next_number("dataset")
    chosen = [service.register(count, dataset_id=str(number + count)) for count in range(3)]
    found = [service.register(count) for count in range(10, 13)]
    assert chosen == [str(number + count) for count in range(3)]
    assert len({*chosen, *found}) == 6


def test_a_chosen_id_may_be_registered_again_with_the_same_structure() -> None:
    service = Service()
    assert service.register(5, dataset_id="mine", element_spec=NUMBERS) == "mine"
    assert service.register(9, dataset_id="mine", element_spec=NUMBERS) == "mine"
    assert service.register(9, dataset_id="mine", element_spec="") == "mine"


def test_an_id_keeps_its_pipeline_and_another_one_is_told_the_first_difference() -> None:
    service = Service()
    service.register(5, dataset_id="mine", pipeline="range(5) | map(f)", fingerprint="f")
    service.close(service.join("mine", "train"))
    before = service.core.state.export()
    assert service.register(5, dataset_id="mine", pipeline="range(5) | map(f)", fingerprint="f") == "mine"
    assert service.kept == ""
    assert service.register(9, dataset_id="mine", pipeline="range(5) | map(g)", fingerprint="g") == "mine"
    assert service.kept == "the first operation that differs is map(g), before it was map(f)"
    service.register(5, dataset_id="mine", pipeline="range(5) | map(f)", fingerprint="changed")
    assert service.kept == "a function or value inside range(5) | map(f) differs"
    service.register(5, dataset_id="mine", pipeline="range(5) | map(f)", fingerprint="")
    assert service.kept == "a function or value inside range(5) | map(f) cannot be compared"
    service.register(5, dataset_id="mine", pipeline="range(5) | map(f)", fingerprint="f", compression="NONE")
    assert service.kept == "the same pipeline with compression NONE, before it was AUTO"
    assert service.core.state.export() == before


def test_a_dataset_that_is_forgotten_takes_its_jobs_along_and_frees_its_id() -> None:
    service = Service()
    service.register(5, dataset_id="mine", fingerprint="f")
    other = service.register(6)
    service.close(service.join("mine", "train"))
    service.close(service.join(other, "other"))
    service.call(ForgetRequest(dataset_id="mine"))
    assert list(service.core.state.jobs) == ["other"]
    assert service.register(9, dataset_id="mine", fingerprint="g") == "mine"
    assert known_dataset(service.core, "mine").info.fingerprint == "g"
    service.wait(3 * GC_S)
    assert "mine" in service.core.state.datasets


def test_a_dataset_that_somebody_reads_is_not_forgotten() -> None:
    service = Service()
    service.register(5, dataset_id="mine")
    service.join("mine", "train")
    with pytest.raises(FailedPreconditionError, match="the dataset 'mine' is read: the job 'train' has 1 client"):
        service.call(ForgetRequest(dataset_id="mine"))
    with pytest.raises(NotFoundError, match="Dataset id mien not found") as caught:
        service.call(ForgetRequest(dataset_id="mien"))
    assert "did you mean 'mine'?" in caught.value.hint


def test_one_id_has_one_structure() -> None:
    service = Service()
    service.register(5, dataset_id="mine", element_spec=NUMBERS)
    with pytest.raises(InvalidArgumentError, match="Datasets with the same ID should have the same structure: 'mine'"):
        service.register(5, dataset_id="mine", element_spec=PAIRS)


def test_an_unknown_id_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(NotFoundError, match="Dataset id UnregisteredID not found") as caught:
        known_dataset(Service().core, "UnregisteredID")
    assert "register_dataset" in caught.value.hint


def test_a_dataset_that_was_read_goes_when_it_has_had_no_job_for_its_time() -> None:
    service = Service()
    dataset = service.register(5)
    read_once(service, dataset)
    service.wait(GC_S - 1)
    assert dataset in service.core.state.datasets
    service.wait(1)
    assert dataset not in service.core.state.datasets


def test_a_dataset_that_was_never_read_or_that_its_user_named_stays() -> None:
    service = Service()
    unread, named = service.register(5), service.register(6, dataset_id="mine")
    read_once(service, named)
    service.wait(3 * GC_S)
    assert {unread, named} <= service.core.state.datasets.keys()


def test_a_dataset_stays_while_any_job_reads_it() -> None:
    service = Service()
    dataset = service.register(5)
    read_once(service, dataset)
    service.join(dataset, "long")
    service.wait(3 * GC_S, service.keep_alive)
    assert dataset in service.core.state.datasets


def test_a_dataset_that_is_registered_again_is_wanted_again() -> None:
    service = Service()
    dataset = service.register(5)
    read_once(service, dataset)
    service.wait(GC_S - 1)
    assert service.register(5) == dataset
    service.wait(GC_S - 1)
    assert dataset in service.core.state.datasets, "its id was given out and is not valid any more"


def test_a_user_who_names_the_id_that_was_found_comes_back_for_it() -> None:
    service = Service()
    dataset = service.register(5)
    assert service.register(5, dataset_id=dataset) == dataset
    read_once(service, dataset)
    service.wait(GC_S - 1)
    service.register(5, dataset_id=dataset)
    service.wait(GC_S - 1)
    assert dataset in service.core.state.datasets
