package rest

import (
	"math"
	"time"

	"boxgate/api"
	"boxgate/llm"
)

// ModelView is the use of models by a box, by the boxes of an API key, or by all boxes. Names of models are text of boxes, in a form that is
// safe in terminals and pages.
type ModelView struct {
	ModelSumView
	AssumedTokens int64             `json:"assumed_tokens" doc:"charged without a report of the vendor: of responses that ended early, and of requests that ran when the gateway was killed"`
	AssumedUSD    llm.Money         `json:"assumed_cost_usd"`
	Models        []ModelSumView    `json:"models,omitempty" doc:"by model, the dearest first; of more than 32 models the rest is \"other\""`
	Budgets       []ModelBudgetView `json:"budgets,omitempty" doc:"the limits that apply, with their use"`
}

// ModelSumView is the use of one model, or of several.
type ModelSumView struct {
	Model      string    `json:"model,omitempty" doc:"as the vendor or the request names it"`
	Requests   int64     `json:"requests"`
	Input      int64     `json:"input_tokens" doc:"without cached ones"`
	Output     int64     `json:"output_tokens"`
	CacheRead  int64     `json:"cache_read_tokens"`
	CacheWrite int64     `json:"cache_write_tokens"`
	Reasoning  int64     `json:"reasoning_tokens" doc:"part of output_tokens"`
	USD        llm.Money `json:"cost_usd" doc:"by the prices of the configuration"`
}

// ModelBudgetView is a limit of models with its use in the current period.
type ModelBudgetView struct {
	Of       string    `json:"of" enum:"box key all" doc:"whose limit it is"`
	Tokens   int64     `json:"tokens,omitempty" doc:"the limit; absent: none"`
	USD      llm.Money `json:"usd,omitempty" doc:"the limit; absent: none"`
	Per      llm.Per   `json:"per" enum:"hour day month total"`
	Used     int64     `json:"used_tokens"`
	UsedUSD  llm.Money `json:"used_usd"`
	Held     int64     `json:"reserved_tokens" doc:"by requests that are running"`
	HeldUSD  llm.Money `json:"reserved_usd"`
	EndsAt   int64     `json:"ends_at,omitempty" doc:"end of the period, in Unix seconds; absent: never"`
	UsedPart float64   `json:"used_ratio" doc:"used and reserved part of the limit, from 0 to 1 or a little more"`
}

// Tokens returns a number of tokens for JSON.
func Tokens(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

func viewSum(m api.ModelSum) ModelSumView {
	return ModelSumView{
		Model: m.Model, Requests: Tokens(m.Requests), Input: Tokens(m.Input), Output: Tokens(m.Output), CacheRead: Tokens(m.CacheRead), CacheWrite: Tokens(m.CacheWrite),
		Reasoning: Tokens(m.Reasoning), USD: m.USD,
	}
}

// ViewModels returns the view of a use of models; nil if there is none and no limit applies.
func ViewModels(u api.ModelUsage) *ModelView {
	if u.Usage == (llm.Usage{}) && u.AssumedTokens == 0 && len(u.Budgets) == 0 {
		return nil
	}
	v := &ModelView{ModelSumView: viewSum(u.ModelSum), AssumedTokens: Tokens(u.AssumedTokens), AssumedUSD: u.AssumedUSD}
	for _, m := range u.Models {
		v.Models = append(v.Models, viewSum(m))
	}
	for _, b := range u.Budgets {
		v.Budgets = append(v.Budgets, viewBudget(b))
	}
	return v
}

func viewBudget(b api.ModelBudget) ModelBudgetView {
	v := ModelBudgetView{
		Of: b.Of, Tokens: Tokens(b.Limit.Tokens), USD: b.Limit.USD, Per: b.Limit.Per, Used: Tokens(b.Used), UsedUSD: b.UsedUSD,
		Held: Tokens(b.Reserved), HeldUSD: b.ReservedUSD, EndsAt: max(b.Ends.Unix(), 0), UsedPart: b.Ratio(),
	}
	if b.Ends.Equal(time.Time{}) {
		v.EndsAt = 0
	}
	return v
}
