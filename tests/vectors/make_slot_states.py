"""Make slot-states.json: vectors of names and pieces of slot states. Uses nothing of kvrun.

Run it in this folder: ``python make_slot_states.py``.
"""

import hashlib
import json
from pathlib import Path

PIECE = 1024 * 1024


def chain(tokens):
    found, before = [], b"kvrun/token-chain/v1\x00"
    for start in range(0, len(tokens) - len(tokens) % 64, 64):
        page = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + 64])
        before = hashlib.sha256(before + page).digest()
        found.append(before)
    return found


def name(link, piece):
    return hashlib.sha256(b"kvrun/state-chunk/v1\x00" + link + piece.to_bytes(4, "big")).digest()


def head(tokens, size):
    fields = b"KVRSTATE" + (1).to_bytes(4, "little")
    fields += tokens.to_bytes(8, "little") + size.to_bytes(8, "little")
    return fields + bytes(64 - len(fields))


def names():
    cases = []
    for tokens in ([7] * 63, list(range(64)), [(n * n) % 262144 for n in range(200)]):
        links = chain(tokens)
        cases.append(
            {
                "tokens": tokens,
                "chain": [link.hex() for link in links],
                "names": [[name(link, piece).hex() for piece in (0, 1, 300)] for link in links],
            }
        )
    return cases


def pieces():
    cases = []
    for tokens, size in ((64, 1), (64, PIECE - 64), (128, PIECE - 63), (640, 2 * PIECE + 5)):
        state = bytes(at * 31 % 251 for at in range(size))
        whole = head(tokens, size) + state
        whole += bytes(-len(whole) % PIECE)
        cut = [whole[at : at + PIECE] for at in range(0, len(whole), PIECE)]
        cases.append(
            {
                "tokens": tokens,
                "size_bytes": size,
                "head": whole[:64].hex(),
                "pieces_sha256": [hashlib.sha256(piece).hexdigest() for piece in cut],
            }
        )
    return cases


if __name__ == "__main__":
    text = json.dumps({"names": names(), "pieces": pieces()}, indent=1)
    Path("slot-states.json").write_text(text + "\n")
