"""Results on disk: files that older versions wrote are still read."""

from fastloop.core.instrumented_pass import Attribution
from fastloop.core.result import Result
from fastloop.core.result_file import RESULT_FILE, load, save


def test_result_is_read_under_former_field_names(tmp_path):
    attribution = Attribution(
        seconds=1.0, first_batch_s=0.5, wait_s=[], place_s=[], cpu_s=1.0, local_step_s=0.25
    )
    result = Result(
        name="raw mydataset",
        loader="raw",
        dataset="mydataset",
        params={},
        tags={},
        decoder_equivalence_id="abc",
        attribution={"training": attribution},
    )
    save(result, tmp_path)
    text = (tmp_path / RESULT_FILE).read_text()
    for name, former in (("decoder_equivalence_id", "alike"), ("local_step_s", "own_step_s")):
        assert f'"{name}":' in text
        text = text.replace(f'"{name}":', f'"{former}":')
    (tmp_path / RESULT_FILE).write_text(text)
    assert load(tmp_path) == result
