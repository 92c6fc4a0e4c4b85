"""Warm-up: profiles, the plan they become on an engine, traffic, evidence of compiling, output check.

Decides nothing about readiness: it reports how warm-up and check ended, with a sentence.

Map: `profiles.py` (files), `steps.py` and `sizes.py` (their schema), `features.py` (sampling fields),
`choice.py` (which profile), `planner.py` (profile + engine → plan), `bursts.py` (what is sent at once),
`prompts.py` (unique prompts), `traffic.py` (sends one burst), `attempts.py` (retries and what errors mean),
`evidence.py` and `tree_watch.py` (what was compiled), `records.py` (what is known of each burst),
`journal.py` (books of the whole), its phases `replay.py`, `rounds.py`, `search.py` (over `stretches.py`, terms in
`search_terms.py`) and `draws.py`, `runner.py` (their order), `coverage.py` (what the next pod goes on from),
`coverage_map.py` (the same for a picture), `sentences.py` (how it is told),
`degenerate.py` and `verify.py` (output check), `results.py` (what is reported).
"""
