import numpy as np
import pytest

from neuralef.data import read_table, write_table

VALUES = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.csv"])
def test_what_is_written_is_read(tmp_path, name):
    write_table(tmp_path / name, VALUES)
    np.testing.assert_array_equal(read_table(tmp_path / name), VALUES)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_csv_may_have_a_header_and_a_byte_order_mark(tmp_path):
    text = "\ufeffa,b\n1,2\n3,4\n"
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    np.testing.assert_array_equal(read_table(tmp_path / "x.csv"), [[1, 2], [3, 4]])


def test_parquet_through_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.DataFrame(VALUES, columns=list("abc")).to_parquet(tmp_path / "x.parquet")
    np.testing.assert_array_equal(read_table(tmp_path / "x.parquet"), VALUES)


def test_one_column_is_one_point_per_number(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(5))
    assert read_table(tmp_path / "x.npy").shape == (5, 1)


def test_arrays_of_an_npz_by_name(tmp_path):
    np.savez(tmp_path / "x.npz", a=VALUES, b=VALUES + 1)
    np.testing.assert_array_equal(read_table(tmp_path / "x.npz", "b"), VALUES + 1)
    with pytest.raises(ValueError, match="a, b"):
        read_table(tmp_path / "x.npz")


def test_pickled_objects_are_never_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(ValueError, match="cannot read"):
        read_table(tmp_path / "x.npy")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.csv"
    write_table(path, VALUES)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_table(path, np.array([["no number"]]))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["x.csv"]
