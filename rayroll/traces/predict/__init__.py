"""How long a tool call will take, from what it means and what its session did: quantiles, learned as calls end.

``model.Predictor`` predicts and is told, ``fit.fit`` makes one out of recorded sessions (``examples.sessions_in``),
``evaluate.evaluate`` says what it is worth, and ``gaps.waits`` is for those who hold caches meanwhile (traces.kv).
"""
