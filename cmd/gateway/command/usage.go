package command

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/llm"
)

// modelHelp is the help text of --model.
const modelHelp = "limit of models for the boxes that the key makes, such as 5usd/day, 1000000tokens/hour, none or default"

// parseModelLimit parses a limit of models: amounts separated by commas, and a period, such as 1000000tokens,5usd/day. default restores the
// configured limit (nil).
func parseModelLimit(text string) (*llm.Limit, error) {
	switch text {
	case "default":
		return nil, nil
	case "none":
		return &llm.Limit{Per: llm.PerTotal}, nil
	}
	amounts, per, _ := strings.Cut(text, "/")
	limit := llm.Limit{Per: llm.Per(per)}
	for part := range strings.SplitSeq(amounts, ",") {
		var err error
		if n, tokens := strings.CutSuffix(part, "tokens"); tokens {
			limit.Tokens, err = strconv.ParseUint(n, 10, 64)
		} else if n, usd := strings.CutSuffix(part, "usd"); usd {
			limit.USD, err = llm.ParseMoney(n)
		} else {
			err = errors.New("no unit")
		}
		if err != nil {
			return nil, cli.Usagef("model: %q is not AMOUNT/PERIOD, such as 5usd/day or 1000000tokens,5usd/month; the periods are hour, day, month and total", text)
		}
	}
	limit, err := limit.Check()
	if err != nil {
		return nil, cli.Usagef("model: %q %v", text, err)
	}
	return &limit, nil
}

// modelSum is the use of one model, or of several, as the API returns it.
type modelSum struct {
	Model      string    `json:"model"`
	Requests   int64     `json:"requests"`
	Input      int64     `json:"input_tokens"`
	Output     int64     `json:"output_tokens"`
	CacheRead  int64     `json:"cache_read_tokens"`
	CacheWrite int64     `json:"cache_write_tokens"`
	USD        llm.Money `json:"cost_usd"`
}

// modelUsage is a use of models as the API returns it.
type modelUsage struct {
	modelSum
	AssumedTokens int64         `json:"assumed_tokens"`
	AssumedUSD    llm.Money     `json:"assumed_cost_usd"`
	Models        []modelSum    `json:"models"`
	Budgets       []modelBudget `json:"budgets"`
}

// modelBudget is a limit of models with its use as the API returns it.
type modelBudget struct {
	Of     string    `json:"of"`
	Tokens uint64    `json:"tokens"`
	USD    llm.Money `json:"usd"`
	Per    llm.Per   `json:"per"`
	Ratio  float64   `json:"used_ratio"`
	EndsAt int64     `json:"ends_at"`
}

// short formats the tokens and the cost, and the most used limit.
func (u *modelUsage) short() string {
	text := fmt.Sprintf("%d tokens", u.Input+u.Output+u.CacheRead+u.CacheWrite)
	if u.USD > 0 {
		text += ", " + dollars(u.USD)
	}
	if budget := u.budget(); budget != "" {
		text += " (" + budget + ")"
	}
	return text
}

// budget formats the limit that is used most.
func (u *modelUsage) budget() string {
	most := -1.0
	text := ""
	for _, b := range u.Budgets {
		if b.Ratio > most {
			most, text = b.Ratio, fmt.Sprintf("%.0f %% of %s", 100*b.Ratio, llm.Limit{Tokens: b.Tokens, USD: b.USD, Per: b.Per})
		}
	}
	return text
}

// dollars formats an amount for people: to the cent from a dollar on, to four decimals below.
func dollars(m llm.Money) string {
	if m >= llm.Dollar || m == 0 {
		return fmt.Sprintf("$%.2f", m.Float())
	}
	return fmt.Sprintf("$%.4f", m.Float())
}

// boxModels is a box with its use of models as the API returns it.
type boxModels struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Usage struct {
		Models *modelUsage `json:"models"`
	} `json:"usage"`
}

// newUsageCommand is `gateway usage`.
func newUsageCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "usage [BOX]",
		Short: "Show the use of models by each box, or by one box of each model",
		Long: `Shows the metered requests to models, their tokens and their cost by the prices of the configuration, for each box that has made some;
with BOX for each of its models. ASSUMED are tokens that were charged without a report of the vendor: of responses that ended early, and
of requests that ran when the gateway was killed. The last line includes deleted boxes.`,
		Args: cli.MaxArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return o.Call(cmd, "GET", api.BoxPath(args[0]), nil, cli.Decoded(printModels))
			}
			return showUsage(cmd, o)
		},
	}
}

// showUsage prints the use of models by each box and by all together.
func showUsage(cmd *cobra.Command, o *cli.Options) error {
	client, err := o.Client()
	if err != nil {
		return err
	}
	var boxes []boxModels
	var all modelUsage
	if err := client.Get(cmd.Context(), "/v2/box", &boxes); err != nil {
		return err
	}
	if err := client.Get(cmd.Context(), "/v2/usage/models", &all); err != nil {
		return err
	}
	if o.JSON {
		return cli.WriteJSON(cmd.OutOrStdout(), map[string]any{"boxes": boxes, "all": all})
	}
	rows := [][]string{{"BOX", "NAME", "REQUESTS", "INPUT", "CACHED", "OUTPUT", "ASSUMED", "COST", "BUDGET"}}
	for _, b := range boxes {
		if b.Usage.Models != nil {
			rows = append(rows, append([]string{b.ID, b.Name}, b.Usage.Models.row()...))
		}
	}
	return cli.Table(cmd.OutOrStdout(), append(rows, append([]string{"all", ""}, all.row()...))...)
}

// row returns the columns of a use of models.
func (u *modelUsage) row() []string {
	columns := u.columns()
	return append(columns[:4:4], strconv.FormatInt(u.AssumedTokens, 10), columns[4], textOrDash(u.budget()))
}

// columns returns the columns of a sum.
func (s *modelSum) columns() []string {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return []string{number(s.Requests), number(s.Input + s.CacheWrite), number(s.CacheRead), number(s.Output), dollars(s.USD)}
}

// printModels prints the use of each model by a box, and its limits.
func printModels(w io.Writer, b boxModels) error {
	u := b.Usage.Models
	if u == nil {
		_, err := fmt.Fprintln(w, "The box has made no metered requests to models, and has no limit of models.")
		return err
	}
	rows := [][]string{{"MODEL", "REQUESTS", "INPUT", "CACHED", "OUTPUT", "COST"}}
	for _, m := range u.Models {
		rows = append(rows, append([]string{m.Model}, m.columns()...))
	}
	if err := cli.Table(w, append(rows, append([]string{"all"}, u.columns()...))...); err != nil {
		return err
	}
	if u.AssumedTokens > 0 {
		fmt.Fprintf(w, "%d tokens (%s) more were charged without a report of the vendor.\n", u.AssumedTokens, dollars(u.AssumedUSD))
	}
	for _, l := range u.Budgets {
		until := ""
		if l.EndsAt > 0 {
			until = ", until " + time.Unix(l.EndsAt, 0).UTC().Format(time.RFC3339)
		}
		if _, err := fmt.Fprintf(w, "Limit of %s: %s, %.0f %% used%s.\n", l.Of, llm.Limit{Tokens: l.Tokens, USD: l.USD, Per: l.Per}, 100*l.Ratio, until); err != nil {
			return err
		}
	}
	return nil
}

// examplePrices is the output of `gateway prices`.
const examplePrices = `# An example for the configuration: US dollars per million tokens. Vendors change their prices: compare each with its vendor's
# list before a limit in dollars depends on it. The pattern with the most characters besides * wins.
prices:
  claude-opus-4-*:   {input: 15,   output: 75, cache_read: 1.5,   cache_write: 18.75, max_output: 32000}
  claude-sonnet-4-*: {input: 3,    output: 15, cache_read: 0.3,   cache_write: 3.75,  max_output: 64000}
  claude-haiku-4-*:  {input: 1,    output: 5,  cache_read: 0.1,   cache_write: 1.25,  max_output: 64000}
  gpt-5*:            {input: 1.25, output: 10, cache_read: 0.125, max_output: 128000}
  gpt-5-mini*:       {input: 0.25, output: 2,  cache_read: 0.025, max_output: 128000}
  gemini-2.5-pro*:   {input: 2.5,  output: 15, cache_read: 0.625, max_output: 65536}
limits:
  model:       {usd: 5, per: day}      # of each box
  model_total: {usd: 500, per: month}  # of all boxes together
quotas:
  model:       {usd: 50, per: day}     # of all boxes of an API key
`

// newPricesCommand is `gateway prices`.
func newPricesCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "prices", Short: "Print an example of prices and limits of models for the configuration", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.JSON {
				return cli.WriteJSON(cmd.OutOrStdout(), map[string]string{"yaml": examplePrices})
			}
			_, err := io.WriteString(cmd.OutOrStdout(), examplePrices)
			return err
		},
	}
}
