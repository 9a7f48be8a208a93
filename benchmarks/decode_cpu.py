"""Beam-4 decoding on the CPU beside HF MarianMT and CTranslate2: sentences a second, and peak memory.

All have the paper's base size and random weights, get the same batches (sorted by length) and make
translations of the same forced length, that of the longest source of the batch. Each candidate lives in
a process of its own; they take turns, and medians are printed. A peer that is not installed
(``benchmarks/requirements.txt``) is named and left out.

    python benchmarks/decode_cpu.py [--source FILE] [--sentences 128] [--batch 32] [--rounds 5]
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

V, BEAM, SPECIAL = 8400, 4, 4
Batches = list[list[list[int]]]
Decode = Callable[[Batches], int]


def lengths_of(source: Path | None, count: int) -> list[int]:
    """Whitespace tokens of a file's first lines, or lengths drawn like en-vi's: log-normal, mean about 25."""
    if source is not None:
        with source.open(encoding="utf-8", newline="\n") as lines:
            return [n for line, _ in zip(lines, range(count), strict=False) if (n := len(line.split()))]
    rng = random.Random(0)
    return [max(1, min(120, round(rng.lognormvariate(3.05, 0.57)))) for _ in range(count)]


def make_batches(lengths: list[int], size: int) -> Batches:
    """Random sentences of these lengths, sorted by length, ``size`` to a batch."""
    rng = random.Random(1)
    sentences = [[rng.randrange(SPECIAL, V - 1) for _ in range(n)] for n in sorted(lengths, reverse=True)]
    return [sentences[i : i + size] for i in range(0, len(sentences), size)]


def prepare_ours(threads: int) -> Decode:
    """Our own search, with EOS made impossible, so that every translation has the greatest length."""
    import torch

    from qknorm.ids import EOS
    from qknorm.model import ModelSettings, Transformer
    from qknorm.translation import SearchSettings
    from qknorm.translation.beam import BatchSearch
    from qknorm.translation.ensemble import Ensemble

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = Transformer(V, ModelSettings())
    with torch.no_grad():
        model.embedding.bias[EOS] = -1e9
    ensemble = Ensemble(model)

    def decode(batches: Batches) -> int:
        made = 0
        with ensemble.evaluating():
            for batch in batches:
                longest = max(map(len, batch))
                search = BatchSearch(ensemble, batch, SearchSettings(beam=BEAM), [longest] * len(batch))
                while search.places:
                    made += sum(len(nbest[0].ids) for nbest in search.step().values())
        return made

    return decode


def marian():  # type: ignore[no-untyped-def]
    """A MarianMT model of the base size with random weights."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=V,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        activation_function="relu",
        pad_token_id=0,
        eos_token_id=3,
        bos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config).eval()


def prepare_marian(threads: int) -> Decode:
    import torch

    torch.set_num_threads(threads)
    model = marian()

    @torch.no_grad()
    def decode(batches: Batches) -> int:
        made = 0
        for batch in batches:
            longest = max(map(len, batch))
            ids = torch.tensor([[*row, 3, *[0] * (longest - len(row))] for row in batch])
            out = model.generate(
                input_ids=ids,
                attention_mask=(ids != 0).long(),
                num_beams=BEAM,
                length_penalty=0.6,
                do_sample=False,
                min_new_tokens=longest,
                max_new_tokens=longest,
            )
            made += out[:, 1:].numel()
        return made

    return decode


def prepare_ctranslate2(threads: int) -> Decode:
    """CTranslate2 in float32, its weights converted from MarianMT's."""
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    # The loader drops the last row, where MarianMT has its padding.
    words = ["<pad>", "<unk>", "<s>", "</s>", *(f"w{i}" for i in range(SPECIAL, V - 1))]
    spec = MarianMTLoader().get_model_spec(marian())
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.config.decoder_start_token = "<s>"
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        translator = ctranslate2.Translator(
            folder, device="cpu", compute_type="float32", inter_threads=1, intra_threads=threads
        )

    def decode(batches: Batches) -> int:
        made = 0
        for batch in batches:
            longest = max(map(len, batch))
            out = translator.translate_batch(
                [[words[i] for i in row] for row in batch],
                beam_size=BEAM,
                length_penalty=0.6,
                min_decoding_length=longest,
                max_decoding_length=longest,
            )
            made += sum(len(result.hypotheses[0]) for result in out)
        return made

    return decode


CANDIDATES: dict[str, tuple[tuple[str, ...], Callable[[int], Decode]]] = {
    "qknorm": ((), prepare_ours),
    "HF MarianMT": (("transformers", "sentencepiece"), prepare_marian),
    "CTranslate2 float32": (("ctranslate2", "transformers"), prepare_ctranslate2),
}


def serve(name: str, threads: int, batches: Batches, connection: Connection) -> None:
    """Decode all batches each time the parent asks; answers seconds, subwords made and peak MiB."""
    try:
        decode = CANDIDATES[name][1](threads)
        decode(batches[-1:])
    except Exception as failure:
        connection.send(f"{type(failure).__name__}: {failure}")
        return
    connection.send(None)
    while connection.recv():
        start = time.perf_counter()
        made = decode(batches)
        seconds = time.perf_counter() - start
        connection.send((seconds, made, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="take sentence lengths from this tokenised file")
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32, help="sentences in a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)

    lengths = lengths_of(options.source, options.sentences)
    batches = make_batches(lengths, options.batch)
    print(
        f"{len(lengths)} sentences of {statistics.mean(lengths):.1f} subwords, batches of {options.batch}, "
        f"beam {BEAM}, {options.threads} threads, medians of {options.rounds} rounds"
    )
    workers: dict[str, tuple[Connection, multiprocessing.process.BaseProcess]] = {}
    context = multiprocessing.get_context("spawn")
    for name, (modules, _) in CANDIDATES.items():
        if missing := [module for module in modules if importlib.util.find_spec(module) is None]:
            print(f"{name}: left out, not installed: {', '.join(missing)} (see benchmarks/requirements.txt)")
            continue
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(name, options.threads, batches, theirs), daemon=True)
        process.start()
        if failure := ours.recv():
            print(f"{name}: left out, {failure}")
            continue
        workers[name] = ours, process

    seconds: dict[str, list[float]] = {name: [] for name in workers}
    made, peak = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0.0)
    for round_ in range(options.rounds):
        names = list(workers)
        for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
            connection = workers[name][0]
            connection.send(True)
            taken, made[name], peak[name] = connection.recv()
            seconds[name].append(taken)
    for connection, process in workers.values():
        connection.send(False)
        process.join()

    print(f"\n{'':22}{'sentences/s':>12}{'slowest-fastest':>18}{'subwords/s':>12}{'peak MiB':>10}")
    for name, times in seconds.items():
        rates = sorted(len(lengths) / s for s in times)
        spread = f"{rates[0]:.2f}-{rates[-1]:.2f}"
        subwords = made[name] / statistics.median(times)
        print(f"{name:22}{statistics.median(rates):>12.2f}{spread:>18}{subwords:>12.0f}{peak[name]:>10.0f}")


if __name__ == "__main__":
    main()
