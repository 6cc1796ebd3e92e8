"""Training on stock verl and Ray: an adapter around our agent loop, a trainer that makes the advantages, a launcher.

Nothing else in mempo knows that verl exists, and only the modules that verl loads import it: `plugin`, `agent_loop`,
`trainer` and what they are made of. The rest (launching, planning, conversion) works without it.
"""
