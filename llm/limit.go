package llm

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Money is an amount of US dollars in units of 10^-12 dollars, so that the price of one token is a whole number. Sums are saturated at
// [MaxMoney].
type Money uint64

// Dollar is one US dollar.
const Dollar Money = 1e12

// MaxMoney is the largest amount, some 18 million dollars.
const MaxMoney Money = math.MaxUint64

// moneyDecimals is the number of decimals of a dollar that Money holds.
const moneyDecimals = 12

var errMoney = errors.New("is no amount of US dollars; use a number such as 5 or 0.25")

// ParseMoney parses a decimal number of dollars, without sign and exponent, such as 5 or 0.25. Decimals beyond the twelfth are refused.
func ParseMoney(text string) (Money, error) {
	whole, decimals, _ := strings.Cut(text, ".")
	if whole == "" || len(whole) > 8 || len(decimals) > moneyDecimals || strings.HasSuffix(text, ".") {
		return 0, errMoney
	}
	digits := whole + decimals + strings.Repeat("0", moneyDecimals-len(decimals))
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, errMoney
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, errMoney
	}
	return Money(n), nil
}

// Plus returns the sum of two amounts.
func (m Money) Plus(more Money) Money { return Money(Add(uint64(m), uint64(more))) }

// Times returns the price of n tokens at the price m of one.
func (m Money) Times(n uint64) Money {
	if high, low := bits.Mul64(uint64(m), n); high == 0 {
		return Money(low)
	}
	return MaxMoney
}

// Float returns the amount in dollars, rounded, for output.
func (m Money) Float() float64 { return float64(m) / float64(Dollar) }

// String formats the amount in dollars, exactly and without trailing zeros.
func (m Money) String() string {
	text := fmt.Sprintf("%d.%012d", uint64(m/Dollar), uint64(m%Dollar))
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// MarshalJSON encodes the amount as a number of dollars.
func (m Money) MarshalJSON() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalJSON decodes a number of dollars.
func (m *Money) UnmarshalJSON(text []byte) (err error) {
	*m, err = ParseMoney(string(text))
	return err
}

// Forms describes the JSON for the OpenAPI document.
func (Money) Forms() []reflect.Type { return []reflect.Type{reflect.TypeFor[float64]()} }

// MarshalText encodes the amount for the configuration.
func (m Money) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText decodes an amount in the configuration.
func (m *Money) UnmarshalText(text []byte) (err error) {
	if *m, err = ParseMoney(strings.TrimSpace(string(text))); err != nil {
		return fmt.Errorf("%q %w", text, err)
	}
	return nil
}

// Add returns the sum of two numbers, saturated at the largest one.
func Add(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}

// Tokens returns all tokens of a request and its response.
func (u Usage) Tokens() uint64 {
	return Add(Add(u.Input, u.Output), Add(u.CacheRead, u.CacheWrite))
}

// Plus returns the sum of two usages.
func (u Usage) Plus(more Usage) Usage {
	return Usage{
		Input: Add(u.Input, more.Input), Output: Add(u.Output, more.Output), CacheRead: Add(u.CacheRead, more.CacheRead),
		CacheWrite: Add(u.CacheWrite, more.CacheWrite), Reasoning: Add(u.Reasoning, more.Reasoning), Requests: Add(u.Requests, more.Requests),
	}
}

// Per is the period of a [Limit]. Hours, days and months are in UTC.
type Per string

// The periods.
const (
	PerHour  Per = "hour"
	PerDay   Per = "day"
	PerMonth Per = "month"
	PerTotal Per = "total" // never starts again
)

// Periods lists the periods, the shortest first.
var Periods = []Per{PerHour, PerDay, PerMonth, PerTotal}

// Limits on the values of a [Limit]: larger ones must be mistakes.
const (
	MaxTokens = 1_000_000_000_000_000
	MaxUSD    = 1_000_000 * Dollar
)

// Limit bounds what models may cost in a period. The zero value is a limit that is not set; one with a period and neither tokens nor
// dollars is no limit.
type Limit struct {
	Tokens uint64 `json:"tokens,omitempty" yaml:"tokens" doc:"tokens of requests and responses, cached ones included; absent: no limit"`
	USD    Money  `json:"usd,omitempty" yaml:"usd" doc:"US dollars, by the prices of the configuration; absent: no limit"`
	Per    Per    `json:"per" yaml:"per" enum:"hour day month total"`
}

// IsSet reports whether the limit is set, also to no limit.
func (l Limit) IsSet() bool { return l.Per != "" }

// Bounds reports whether the limit bounds anything.
func (l Limit) Bounds() bool { return l.Tokens > 0 || l.USD > 0 }

// Check returns the limit with its period, or the mistake in it. Without tokens and dollars the period may be missing.
func (l Limit) Check() (Limit, error) {
	if l.Per == "" && !l.Bounds() {
		l.Per = PerTotal
	}
	switch {
	case l.Per == "":
		return Limit{}, errors.New("needs a period: per is hour, day, month or total")
	case l.Per != PerHour && l.Per != PerDay && l.Per != PerMonth && l.Per != PerTotal:
		return Limit{}, errors.New("has an unknown period: per is hour, day, month or total")
	case l.Tokens > MaxTokens:
		return Limit{}, fmt.Errorf("may have at most %d tokens", uint64(MaxTokens))
	case l.USD > MaxUSD:
		return Limit{}, fmt.Errorf("may have at most %v usd", MaxUSD)
	}
	return l, nil
}

// perPeriod is how many periods of one kind begin in one of another, at most.
var perPeriod = map[[2]Per]uint64{{PerHour, PerDay}: 24, {PerHour, PerMonth}: 31 * 24, {PerDay, PerMonth}: 31}

// Within reports whether what l allows is surely allowed by other. A limit for a shorter period counts as often as its period may
// begin in the longer one.
func (l Limit) Within(other Limit) bool {
	times := uint64(1)
	if l.Per != other.Per && slices.Index(Periods, l.Per) < slices.Index(Periods, other.Per) {
		times = perPeriod[[2]Per{l.Per, other.Per}]
	}
	within := func(n, most uint64) bool { return most == 0 || n > 0 && times > 0 && n <= most/times }
	return within(l.Tokens, other.Tokens) && within(uint64(l.USD), uint64(other.USD))
}

// String formats a limit: 1000000 tokens and 5 usd per day.
func (l Limit) String() string {
	var parts []string
	if l.Tokens > 0 {
		parts = append(parts, fmt.Sprintf("%d tokens", l.Tokens))
	}
	if l.USD > 0 {
		parts = append(parts, l.USD.String()+" usd")
	}
	switch {
	case len(parts) == 0:
		return "none"
	case l.Per == PerTotal:
		return strings.Join(parts, " and ") + " in total"
	}
	return strings.Join(parts, " and ") + " per " + string(l.Per)
}
