"""The passes, imported as ``aotc.passes``: one file a pass; ``pipeline`` lists them in their order."""

if __name__ != "aotc.passes":
    raise ImportError(f"import this package as aotc.passes, not as {__name__}: a second copy would have passes of its own")
