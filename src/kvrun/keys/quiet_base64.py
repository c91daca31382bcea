"""Base64 (RFC 4648 §4) of keys, byte by byte, so that no copy is left that cannot be zeroed."""

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}


def encode(secret: memoryview) -> bytearray:
    """The text of ``secret``; the caller zeroes it."""
    text = bytearray()
    for start in range(0, len(secret), 3):
        group = secret[start : start + 3]
        bits = 0
        for index in range(3):
            bits = bits << 8 | (group[index] if index < len(group) else 0)
        for index in range(4):
            padded = index > len(group)
            text.append(ord("=") if padded else _ALPHABET[bits >> (18 - 6 * index) & 63])
    return text


def decode_into(text: memoryview, out: memoryview) -> None:
    """Put what ``text`` says into ``out``; ValueError when it is not base64 of just as much."""
    if len(text) != -(-len(out) // 3) * 4:
        raise ValueError("the text has another length")
    for start in range(0, len(text), 4):
        first = start // 4 * 3
        count = min(3, len(out) - first)
        bits = 0
        for index in range(4):
            letter = text[start + index]
            value = _VALUES.get(letter, 0 if letter == ord("=") and index > count else -1)
            if value < 0 or (index > count and letter != ord("=")):
                raise ValueError("the text is not base64")
            bits = bits << 6 | value
        if bits & ((1 << 8 * (3 - count)) - 1):
            raise ValueError("the text has bits after its end")
        for index in range(count):
            out[first + index] = bits >> (16 - 8 * index) & 255
