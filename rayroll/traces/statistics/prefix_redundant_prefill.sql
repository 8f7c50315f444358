-- How much of what is prefilled was ever new. Fresh: a step's context growth minus the previous step's output, not
-- below 0 and not above its append: what even a cache that never gives anything up must prefill. Amplification: append
-- by fresh (not the macro, which divides by context growth). Steps with a trigger and a predecessor. The published
-- table (facts.json prefix_cache.redundant_prefill) is the net_ columns: its program adds up growth minus output over
-- all steps, without the two limits that the definition of fresh puts on each.
-- Source: TraceLab, redundant_prefill; the limits: eviction_tradeoff.
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    if(grouping(trigger) = 1, 'all', trigger) AS trigger,
    count(*) AS steps,
    sum(append_tokens) AS append_tokens,
    sum(fresh_tokens) AS fresh_tokens,
    sum(fresh_tokens) / nullif(sum(append_tokens), 0) AS fresh_share,
    sum(append_tokens) / nullif(sum(fresh_tokens), 0) AS amplification,
    sum(growth_tokens - previous_output_tokens) AS net_fresh_tokens,
    sum(growth_tokens - previous_output_tokens) / nullif(sum(append_tokens), 0) AS net_fresh_share,
    sum(append_tokens) / nullif(sum(growth_tokens - previous_output_tokens), 0) AS net_amplification
FROM contexts
WHERE growth_tokens IS NOT NULL AND trigger IS NOT NULL
GROUP BY GROUPING SETS ((), (provider), (trigger), (provider, trigger))
ORDER BY ALL;
