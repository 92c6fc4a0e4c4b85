"""Warm-up: profiles, the plan they become on an engine, traffic, evidence of compiling, output check.

Decides nothing about readiness: it reports how warm-up and check ended, with a sentence.

Map: `profiles.py` (files), `steps.py` and `sizes.py` (their schema), `features.py` (sampling fields),
`choice.py` (which profile), `planner.py` (profile + engine → plan), `bursts.py` (what is sent at once),
`prompts.py` (unique prompts), `traffic.py` (sends one burst), `attempts.py` (retries and what errors mean),
`evidence.py` (what was compiled), `records.py` (what is known of each step), `runner.py` (rounds and draws),
`sentences.py` (how it is told), `degenerate.py` and `verify.py` (output check), `results.py` (what is
reported).
"""
