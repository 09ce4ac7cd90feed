"""Damaged tables end in one error that names the file, or are read as they say."""

import math
import struct
from io import BytesIO
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import pytest
from damage import damaged
from limits import within

from neuralef.data import read_table

pytestmark = pytest.mark.filterwarnings("error")
FILES = 500  # of each kind


def arrays():
    random = np.random.default_rng(0)
    yield random.normal(size=(40, 3))
    yield random.normal(size=(7, 2, 2)).astype(np.float32)
    yield np.asfortranarray(random.integers(-9, 9, size=(30, 4)))
    yield random.normal(size=25) > 0


def as_npy(values):
    file = BytesIO()
    np.save(file, values)
    return file.getvalue()


def as_npz(values):
    file, compressed = BytesIO(), BytesIO()
    np.savez(file, x=values, y=values[:2])
    np.savez_compressed(compressed, values)
    return file.getvalue(), compressed.getvalue()


def as_csv(values):
    file = BytesIO()
    np.savetxt(file, values.reshape(len(values), -1), delimiter=",", fmt="%.6g")
    header = ",".join(f"column {j}" for j in range(values[0].size))
    return file.getvalue(), header.encode() + b"\n\n" + file.getvalue()


def as_parquet(values):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(values.reshape(len(values), -1)).add_prefix("column ")
    for compression in ("snappy", "gzip", None):
        file = BytesIO()
        frame.to_parquet(file, compression=compression)
        yield file.getvalue()


def made(suffix):
    """Sound files of a kind."""
    make = {"npy": lambda v: [as_npy(v)], "npz": as_npz, "csv": as_csv, "parquet": as_parquet}
    return [file for values in arrays() for file in make[suffix](values)]


def plainly_read(path):
    """What numpy and pandas, or Python's own numbers, make of a file."""
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".npz":
        with np.load(path) as found:
            return found["x" if "x" in found else found.files[0]]
    if path.suffix == ".parquet":
        import pandas

        return pandas.read_parquet(path).to_numpy()
    lines = [line.split("#")[0] for line in path.read_text("utf-8-sig").splitlines()]
    rows = [line.split(",") for line in lines if line]
    try:
        float(rows[0][0])
    except ValueError:
        rows = rows[1:] if not any(map(_number, rows[0])) else rows
    return np.array([[float(cell) for cell in row] for row in rows])


def _number(cell):
    try:
        return math.isfinite(float(cell)) or True
    except ValueError:
        return False


@pytest.mark.parametrize("suffix", ["npy", "npz", "csv", "parquet"])
def test_damaged_files_are_refused_by_name_or_read_as_they_say(suffix, tmp_path):
    files, path = made(suffix), tmp_path / f"table.{suffix}"
    for file in files:
        path.write_bytes(file)
        read_table(path)
    refused = 0
    for seed in range(FILES):
        path.write_bytes(damaged(files, seed, np.random.default_rng(seed)))
        try:
            with within(megabytes=200, seconds=2):
                values = read_table(path)
        except ValueError as error:
            refused += 1
            assert str(path) in str(error)  # noqa: PT017
            assert str(error).isprintable()  # noqa: PT017
            continue
        expected = plainly_read(path)
        shape = expected.shape if expected.ndim > 1 else (len(expected), 1)
        np.testing.assert_array_equal(values, expected.reshape(shape), err_msg=f"seed {seed}")
    assert refused > FILES / 10


def npy(header, data=b"", version=(1, 0)):
    """An .npy with any header at all."""
    text = header.encode("latin1") + b"\n"
    length = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + text + data


def claims(shape="(4, 3)", dtype="'<f8'"):
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}"


def npz(members, method=ZIP_DEFLATED):
    file = BytesIO()
    with ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def objects():
    file = BytesIO()
    np.save(file, np.array([[1, "a"]], dtype=object), allow_pickle=True)
    return file.getvalue()


SOUND = npy(claims(), bytes(96))
MADE_UP = {
    "terabytes.npy": (npy(claims(f"({10**12}, 3)")), "in all 24,000,000,000,0"),
    "beyond_counting.npy": (npy(claims(f"({2**63}, {2**63})")), "in all"),
    "negative.npy": (npy(claims("(-1, 3)"), bytes(96)), r"shape \(-1, 3\)"),
    "no_length.npy": (npy(claims("(True, 3)"), bytes(24)), r"shape \(True, 3\)"),
    "brackets.npy": (npy("(" * 9000), ""),
    "minuses.npy": (npy(claims("-" * 9000 + "1")), ""),
    "open_string.npy": (npy(claims()[:-9] + "'" * 3), ""),
    "unhashable.npy": (npy("{[]: 1}"), ""),
    "long_header.npy": (SOUND[:6] + b"\2\0" + b"\xff" * 4, ""),
    "next_version.npy": (npy(claims(), bytes(96), (9, 0)), ""),
    "objects.npy": (objects(), "object, expected numbers"),
    "words.npy": (npy(claims(dtype="'<U4'"), bytes(192)), "<U4, expected numbers"),
    "records.npy": (npy(claims(dtype="[('a', '<f8')]"), bytes(96)), "expected numbers"),
    "complex.npy": (npy(claims(dtype="'<c16'"), bytes(192)), "complex128, expected numbers"),
    "more.npy": (SOUND + b"0", f"{len(SOUND)} bytes, where there are {len(SOUND) + 1}"),
    "less.npy": (SOUND[:-1], f"{len(SOUND)} bytes, where there are {len(SOUND) - 1}"),
    "zip.npy": (npz({"x.npy": SOUND}), ""),
    "array.npz": (SOUND, ""),
    "no_array.npz": (npz({"x.npy": b"text"}), ""),
    "text.npz": (npz({"readme.txt": b"text"}), ""),
    "nothing.npz": (npz({}), "it holds the arrays : name one"),
    "lines.npz": (npz({"a\nb": SOUND, "c": SOUND}), "a b, c: name one"),
    "bomb.npz": (npz({"x.npy": SOUND + bytes(2**28)}), "bytes, where there are 268,435"),
    "other_method.npz": (npz({"x.npy": SOUND}, ZIP_BZIP2), "another method"),
    "objects.npz": (npz({"x.npy": objects()}), "object, expected numbers"),
    "empty.csv": (b"", "the file is empty"),
    "blank.csv": (b"\n \n", "the file is empty"),
    "header.csv": (b"a,b\n", "holds no numbers"),
    "utf16.csv": ("1,2\n".encode("utf-16"), "codec can't decode"),
    "noise.parquet": (b"PAR1" + bytes(40) + b"PAR1", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE_UP)
def test_what_a_file_claims_is_checked_first(name, tmp_path):
    content, says = MADE_UP[name]
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
        pytest.importorskip("pandas")
    (tmp_path / name).write_bytes(content)
    expected = pytest.raises(ValueError, match=rf"{name}.*{says}")
    with within(megabytes=200, seconds=2), expected as error:
        read_table(tmp_path / name)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("field", [20, 24], ids=["compressed", "full"])
@pytest.mark.parametrize("method", [ZIP_STORED, ZIP_DEFLATED], ids=["stored", "deflated"])
def test_a_size_that_cannot_be_is_refused(field, method, tmp_path):
    data = bytearray(npz({"x.npy": npy(claims("(400000000,)"))}, method))
    start = data.rindex(b"PK\1\2") + field
    data[start : start + 4] = struct.pack("<I", 32 * 10**8 + len(npy(claims("(400000000,)"))))
    (tmp_path / "x.npz").write_bytes(data)
    with within(megabytes=200, seconds=2), pytest.raises(ValueError, match=r"x\.npz: "):
        read_table(tmp_path / "x.npz")


@pytest.mark.parametrize("suffix", ["npy", "npz", "parquet"])
def test_what_memory_cannot_hold_is_refused(suffix, tmp_path, monkeypatch):
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(made(suffix)[0])
    monkeypatch.setattr("neuralef.checks._memory", lambda device: 900)
    with pytest.raises(ValueError, match=rf"x\.{suffix}: its array = 40 × 3 numbers"):
        read_table(path)


@pytest.mark.parametrize("seed", range(60))
def test_a_csv_names_the_line_and_the_column_of_the_file(seed, tmp_path):
    random = np.random.default_rng(seed)
    rows = random.integers(99, size=(9, 3)).astype(str).tolist()
    bad, column, wrong = random.integers(1, 9), random.integers(3), seed % 4
    if wrong:
        rows[bad][column] = ["", "NA", "1.2.3"][wrong - 1]
    else:
        rows[bad].pop()
    lines = [",".join(row) for row in rows]
    expected = lines[bad]
    for _ in range(random.integers(4)):
        lines.insert(random.integers(len(lines) + 1), random.choice(["", "# a, b", "#"]))
    lines = ["a,b,c"] * int(random.integers(2)) + lines
    line = 1 + lines.index(expected)
    text = str(random.choice(["\n", "\r\n"])).join(lines)
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xef\xbb\xbf" * int(random.integers(2)) + text.encode())
    says = f"in line {line}, column {column + 1}, is no" if wrong else f"line {line} has 2 columns"
    with pytest.raises(ValueError, match=rf"x\.csv: .*{says}"):
        read_table(path)


@pytest.mark.parametrize("suffix", ["npy", "npz", "csv", "parquet"])
def test_commands_end_in_one_line(suffix, neuralef, tmp_path):
    np.save("x.npy", np.random.default_rng(0).normal(size=(20, 3)))
    neuralef("fit", "x.npy", "--solver", "nystrom", "--k", 2, "-o", "fitted")
    files, path = made(suffix), tmp_path / f"bad.{suffix}"
    commands = ("fit", path.name, "-o", "run"), ("transform", "fitted", path.name, "-o", "f.npy")
    ended = 0
    for seed in range(40):
        path.write_bytes(damaged(files, seed, np.random.default_rng(seed)))
        try:
            read_table(path)
            continue
        except ValueError:
            ended += 1
        for words in commands:
            code, out, errors = neuralef(*words)
            assert (code, out) == (2, ""), f"seed {seed}"
            assert errors.startswith(f"error: cannot read {path.name}"), errors
            assert errors.count("\n") == 1
            assert sorted(made.name for made in tmp_path.iterdir()) == [
                path.name,
                "fitted",
                "x.npy",
            ]
    assert ended >= 5
