"""Files of blocks with a changed header and the checksum that is due: what only a reader of the header notices."""

import json
from hashlib import sha256
from struct import pack

ZEROS = "0" * 64
MARK = b'"sha256":"'


def reseal(path, change):
    """Put ``change(header)``, fields or text, in the place of the header of ``path``, and the checksum that is due."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    fields = json.loads(data[8 : 8 + size])
    fields["__metadata__"]["sha256"] = ZEROS
    header = change(fields)
    header = (header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))).encode()
    assert MARK + ZEROS.encode() in header
    whole = pack("<Q", len(header)) + header + data[8 + size :]
    path.write_bytes(whole.replace(MARK + ZEROS.encode(), MARK + sha256(whole).hexdigest().encode(), 1))


def metadata(**changes):
    """The header with these fields of its metadata changed, or taken out where a change is None."""

    def change(header):
        kept = {**header["__metadata__"], **changes}
        return header | {"__metadata__": {name: value for name, value in kept.items() if value is not None}}

    return change


def notes(**changes):
    """The header with these notes changed."""
    return lambda header: metadata(
        notes=json.dumps({**json.loads(header["__metadata__"]["notes"]), **changes})
    )(header)


def _tensor(**changes):
    return lambda header: header | {"0.0": header["0.0"] | changes}


MALFORMED = {  # the header of a file of blocks, in forms that no writer of ours makes
    "no metadata": lambda header: {"other": header["__metadata__"]},
    "no JSON": lambda header: json.dumps(header, separators=(",", ":")) + "}",
    "metadata is a list": lambda header: header | {"__metadata__": [header["__metadata__"]]},
    "metadata holds a number": metadata(cache=7),
    "the metadata's checksum is elsewhere": lambda header: (
        header | {"0.0": header["0.0"] | {"sha256": ZEROS}, "__metadata__": {}}
    ),
    "no notes": metadata(notes=None),
    "notes are no JSON": metadata(notes="{"),
    "notes are a list": metadata(notes="[]"),
    "notes are nested": metadata(notes="[" * 100_000),
    "a note is a number": notes(model=7),
    "a number of 5,000 digits": lambda header: (
        json.dumps(header, separators=(",", ":"))[:-1] + ',"x":' + "7" * 5000 + "}"
    ),
    "the header is nested": lambda header: (
        json.dumps(header, separators=(",", ":"))[:-1] + ',"x":' + "[" * 100_000
    ),
    "no tensor": lambda header: {"__metadata__": header["__metadata__"]},
    "a tensor is a list": lambda header: header | {"0.0": []},
    "a tensor of another dtype": _tensor(dtype="I16"),
    "a tensor of no dtype": _tensor(dtype="F7"),
    "a tensor of no dimension": _tensor(shape=[]),
    "a tensor of another shape": lambda header: (
        header | {"0.0": header["0.0"] | {"shape": header["0.0"]["shape"][::-1]}}
    ),
    "a tensor as wide as none": _tensor(shape=[0, 2**63]),
}
