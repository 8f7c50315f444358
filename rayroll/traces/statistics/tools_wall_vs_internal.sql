-- What a call takes by the client's clock beyond what its runner reported, max(wall - internal, 0), of calls that have
-- both and wall above 0: an upper bound for approval, shell start and scheduling. name 'all': every tool of the provider;
-- coverage: its share of the provider's (the tool's) calls. For rayroll it is the tax of a command.
-- Source: TraceLab, codex_wall_internal_gap; facts.json tools.codex_wall_vs_internal, definitions.codex_residual_gap.
WITH timed AS (
    SELECT provider, name, wall_ms, internal_ms,
        CASE WHEN wall_ms > 0 AND internal_ms IS NOT NULL THEN greatest(wall_ms - internal_ms, 0) / 1000 END AS residual_s
    FROM tools JOIN steps USING (step_id)
),
gaps AS (
    SELECT provider, if(grouping(name) = 1, 'all', name) AS name,
        count(residual_s) AS calls, count(residual_s) / count(*) AS coverage,
        sum(wall_ms) FILTER (residual_s IS NOT NULL) / 3.6e6 AS wall_h,
        sum(internal_ms) FILTER (residual_s IS NOT NULL) / 3.6e6 AS internal_h,
        sum(residual_s) / 3600 AS residual_h,
        residual_h / wall_h AS residual_share_of_wall,
        avg(residual_s) AS avg_s, quantile_cont(residual_s, 0.5) AS p50_s,
        quantile_cont(residual_s, 0.9) AS p90_s, quantile_cont(residual_s, 0.99) AS p99_s
    FROM timed
    GROUP BY GROUPING SETS ((provider), (provider, name))
)
FROM gaps
WHERE calls > 0
ORDER BY provider, name <> 'all', calls DESC, name;
