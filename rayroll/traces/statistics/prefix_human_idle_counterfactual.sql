-- What would be saved if no user's thinking ever cost a session its cache: each user step with a predecessor appends at
-- most its context growth, the rest of its append is read from the cache instead. All other steps, contexts and output
-- stay as they were. An upper bound. append_* are of all steps; user_reduction_share: of the user steps' own append.
-- Costs (cost) are of steps with a price, the tokens of all.
-- $prices = null: lines of a price table, rayroll.traces.prices.load().rows(); null prices nothing
-- Source: TraceLab, human_idle_cache_counterfactual.
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    count(*) FILTER (WHERE is_changed) AS user_steps,
    sum(append_tokens) AS append_tokens,
    sum(append_tokens - saved_tokens) AS append_after_tokens,
    sum(saved_tokens) AS append_reduction_tokens,
    sum(saved_tokens) / nullif(sum(append_tokens), 0) AS append_reduction_share,
    sum(saved_tokens) / nullif(sum(append_tokens) FILTER (WHERE trigger = 'user'), 0) AS user_reduction_share,
    sum(usd) AS cost_usd,
    sum(usd - saved_usd) AS cost_after_usd,
    sum(saved_usd) / nullif(sum(usd), 0) AS saving_share
FROM (
    SELECT
        *,
        append_usd + prefix_usd + output_usd AS usd,
        saved_tokens * (append_usd_per_mtok - prefix_usd_per_mtok) / 1e6 AS saved_usd
    FROM (
        SELECT
            step_id,
            trigger,
            append_tokens,
            trigger = 'user' AND growth_tokens IS NOT NULL AS is_changed,
            if(is_changed, greatest(append_tokens - growth_tokens, 0), 0) AS saved_tokens
        FROM contexts
    )
    JOIN step_costs($prices) USING (step_id)
)
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
