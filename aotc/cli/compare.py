"""``aotc compare``"""


def compare() -> None:
    raise SystemExit
