"""Make witness.json: vectors of C2SP add-checkpoint. Uses nothing of kvrun.

Run it in this folder: ``python make_witness.py``. Needs only the cryptography package.
"""

import base64
import hashlib
import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LOG = "kvrun.test/instances/vector"
WITNESS = "witness.test/w1"
LOG_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
WITNESS_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64)))
TIME = 1780000000

# The request that https://c2sp.org/tlog-witness shows, and the cosigned checkpoint that
# https://c2sp.org/tlog-cosignature shows.
PUBLISHED_REQUEST = """old 20852014
PlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=
jrJZDmY8Y7SyJE0MWLpLozkIVMSMZcD5kvuKxPC3swk=
5+pKlUdi2LeF/BcMHBn+Ku6yhPGNCswZZD1X/6QgPd8=
/6WVhPs2CwSsb5rYBH5cjHV/wSmA79abXAwhXw3Kj/0=

example.com/behind-the-sofa
20852163
CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

\u2014 example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv\
2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=
\u2014 example.com/behind-the-sofa opLqBQsREYCgu6xQkYQwJr9fo45a62DN9EdmHXnZdXNqlcVGlCum2Wks+49/V6\
267UEjw6QUXTS5Rovnzv++qbSzm9Q=
"""
PUBLISHED_COSIGNATURE = (
    "\u2014 witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJs"
    "X3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==\n"
)


def sha(data):
    return hashlib.sha256(data).digest()


def largest_power_below(count):
    power = 1
    while power * 2 < count:
        power *= 2
    return power


def root(leaves):
    """MTH of RFC 6962, 2.1, as it is written there."""
    if not leaves:
        return sha(b"")
    if len(leaves) == 1:
        return leaves[0]
    split = largest_power_below(len(leaves))
    return sha(b"\x01" + root(leaves[:split]) + root(leaves[split:]))


def subproof(old, leaves, whole):
    """SUBPROOF of RFC 6962, 2.1.2, as it is written there."""
    if old == len(leaves):
        return [] if whole else [root(leaves)]
    split = largest_power_below(len(leaves))
    if old <= split:
        return [*subproof(old, leaves[:split], whole), root(leaves[split:])]
    return [*subproof(old - split, leaves[split:], False), root(leaves[:split])]


def b64(data):
    return base64.b64encode(data).decode()


def key_line(name, kind, key):
    public = key.public_key().public_bytes_raw()
    key_id = sha(name.encode() + b"\n" + bytes([kind]) + public)[:4]
    return f"{name}+{key_id.hex()}+{b64(bytes([kind]) + public)}"


def signature_line(name, kind, key, message, prefix=b""):
    key_id = bytes.fromhex(key_line(name, kind, key).split("+")[1])
    return f"\u2014 {name} {b64(key_id + prefix + key.sign(message))}\n"


def checkpoint(leaves):
    text = f"{LOG}\n{len(leaves)}\n{b64(root(leaves))}\n"
    return text, text + "\n" + signature_line(LOG, 1, LOG_KEY, text.encode())


def exchange(old, leaves):
    """One add-checkpoint call as bytes: the request's and the answer's body."""
    text, note = checkpoint(leaves)
    proof = subproof(old, leaves, True) if old else []
    lines = "".join(f"{b64(item)}\n" for item in proof)
    message = f"cosignature/v1\ntime {TIME}\n{text}".encode()
    answer = signature_line(WITNESS, 4, WITNESS_KEY, message, TIME.to_bytes(8, "big"))
    return {
        "old": old,
        "size": len(leaves),
        "request": f"old {old}\n{lines}\n{note}",
        "answer": answer,
    }


def main():
    leaves = [sha(b"\x00" + f"record {number}".encode()) for number in range(21)]
    steps = [(0, 1), (1, 3), (3, 3), (3, 8), (8, 13), (13, 20), (20, 21)]
    vectors = {
        "log_key": key_line(LOG, 1, LOG_KEY),
        "log_seed": bytes(range(32)).hex(),
        "witness_key": key_line(WITNESS, 4, WITNESS_KEY),
        "witness_seed": bytes(range(32, 64)).hex(),
        "time": TIME,
        "leaves": [leaf.hex() for leaf in leaves],
        "exchanges": [exchange(old, leaves[:size]) for old, size in steps],
        "published_request": PUBLISHED_REQUEST,
        "published_cosignature": PUBLISHED_COSIGNATURE,
    }
    path = Path(__file__).with_name("witness.json")
    path.write_text(json.dumps(vectors, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
