"""Chest X-rays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from undrift.core import rng
from undrift.core.errors import InvalidInput, unknown
from undrift.core.settings import at_least
from undrift.data import formats, tables
from undrift.data.dataset import Dataset
from undrift.data.images import read_images
from undrift.data.sources.base import Fraction
from undrift.data.sources.files import File, Release
from undrift.data.sources.pictures import Pictures


class Covidx(Pictures):
    """Chest X-rays with and without COVID-19, grey, one client per patient; test patients are not in training.

    Reads a folder of pictures with a metadata CSV (columns patientid, finding, filename; where there are columns
    modality and view, only frontal X-rays), or an ``.npz`` with images, covid, patient.
    """

    name = "covidx"
    title = "COVID-19 chest X-rays"
    homepage = "https://github.com/ieee8023/covid-chestxray-dataset"
    licence = "per picture, mostly CC BY-NC-SA"
    size = "not stated"
    natural = True
    pixels: Annotated[int, "resize to so many pixels a side", at_least(8)] = 64
    test_fraction: Fraction = 0.2

    def releases(self) -> tuple[Release, ...]:
        folder = "covid-chestxray-dataset"
        url = "https://github.com/ieee8023/covid-chestxray-dataset/archive/refs/heads/master.zip"
        npz = File("covid-chestxray-64/covid_chestxray_64.npz")
        archive = File("covid-chestxray-dataset.zip", "", url)
        return (
            Release("unpacked", (File(f"{folder}-master/metadata.csv"), File(f"{folder}-master/images")), (archive,)),
            Release("cloned", (File(f"{folder}/metadata.csv"), File(f"{folder}/images"))),
            Release("npz", (npz,)),
        )

    def read(self, root: Path, release: Release) -> Dataset:
        path = release.files[0].at(root)
        if release.name == "npz":
            arrays = formats.read_npz(path, ("images", "covid", "patient"))
            images, y, patient = arrays["images"], arrays["covid"], arrays["patient"]
            if images.ndim != 3 or not len(images) == len(y) == len(patient):
                raise InvalidInput(f"{path}: {images.shape} pictures for {len(y)} labels and {len(patient)} patients")
            y = formats.check_labels(y, 2, path)
            if images.shape[1:] != (self.pixels, self.pixels):
                raise InvalidInput(f"{path}: its pictures are {images.shape[1]} x {images.shape[2]}, not {self.pixels}")
            images = images[:, None]
        else:
            images, y, patient = self.folder(path)
        held = _held_patients(patient, self.test_fraction)
        x = self.scaled(images)
        return self.dataset(
            x[~held],
            y[~held],
            x[held],
            y[held],
            2,
            client=patient[~held],
            client_test=patient[held],
            class_names=("other", "COVID-19"),
        )

    def folder(self, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[Any]]:
        table = tables.read_csv(path)
        for column in ("patientid", "finding", "filename"):
            if column not in table.columns:
                raise InvalidInput(f"{path}: {unknown('column', column, table.columns)}")
        keep = np.ones(len(table.columns["finding"]), bool)
        if "modality" in table.columns:
            keep &= table.columns["modality"] == "X-ray"
        if "view" in table.columns:
            keep &= np.isin(table.columns["view"], ["PA", "AP", "AP Supine", "AP Erect"])
        finding = table.columns["finding"]
        keep &= ~np.isin(finding, ["", "todo", "Unknown"])
        if not keep.any():
            raise InvalidInput(f"{path}: no row is a frontal X-ray with a finding")
        files = [path.parent / "images" / name for name in table.columns["filename"][keep].tolist()]
        for place, file in zip(np.flatnonzero(keep).tolist(), files, strict=True):
            if not file.is_file():
                raise InvalidInput(f"{path}: row {table.rows[place]} names {file.name}, which is not in {file.parent}")
        covid = np.char.find(finding[keep].astype(str), "COVID-19") >= 0
        patient = table.columns["patientid"][keep].astype(str)
        return read_images(files, self.pixels, grey=True), covid.astype(np.int64), patient


def _held_patients(patient: NDArray[Any], fraction: float) -> NDArray[np.bool_]:
    """Whole patients in a keyed order until ``fraction`` of the pictures is held out."""
    names, inverse = np.unique(patient, return_inverse=True)
    inverse = inverse.reshape(-1)
    if len(names) < 2:
        raise InvalidInput(f"covidx: {len(names)} patient is too few to split")
    order = rng.permutation(rng.key(0, "patients"), len(names))
    before = np.cumsum(np.bincount(inverse)[order]) - np.bincount(inverse)[order]
    held = order[before < fraction * len(patient)][: len(names) - 1]
    return np.isin(inverse, held)
