-- Tokens prefilled for each token by which contexts grew: append of all steps by context growth (not by fresh tokens:
-- that is prefix_redundant_prefill, another number). Growth: a step's input minus that of the step before it in the
-- session, not below 0, of steps with a trigger; a session's first step grows nothing, its append counts.
-- Source: TraceLab, trace_facts/paper_macros (prefillamplificationfactor).
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    sum(append_tokens) AS append_tokens,
    sum(growth_tokens) FILTER (WHERE trigger IS NOT NULL) AS growth_tokens,
    sum(append_tokens)
        / nullif(sum(growth_tokens) FILTER (WHERE trigger IS NOT NULL), 0)
        AS amplification
FROM contexts
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
