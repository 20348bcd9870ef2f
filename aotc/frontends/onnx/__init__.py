"""Imports ONNX models."""

from aotc.frontends.onnx.importer import import_onnx as import_onnx
