package llm

import (
	"encoding/json"
	"testing"
)

func TestMoney(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Money{"5": 5 * Dollar, "0.25": Dollar / 4, "0": 0, "0.000000000001": 1, "12345678.5": 12345678*Dollar + Dollar/2} {
		m, err := ParseMoney(text)
		if err != nil || m != want || m.String() != text {
			t.Errorf("%s is %d (%v), written %s; want %d", text, uint64(m), err, m, uint64(want))
		}
	}
	for _, bad := range []string{"", "-1", "+1", "1e9", "1e999999999", ".5", "5.", "1.2.3", "0.0000000000001", "999999999", "NaN", "0x1", "1_0", "١", "18446745"} {
		if m, err := ParseMoney(bad); err == nil {
			t.Errorf("%q is %v", bad, m)
		}
	}
	if got := MaxMoney.Plus(1); got != MaxMoney {
		t.Errorf("the largest amount and more is %v", got)
	}
	if got := Money(1 << 40).Times(1 << 40); got != MaxMoney {
		t.Errorf("a product beyond the largest amount is %v", got)
	}
	var l Limit
	if err := json.Unmarshal([]byte(`{"tokens":7,"usd":0.5,"per":"day"}`), &l); err != nil || l != (Limit{7, Dollar / 2, PerDay}) {
		t.Errorf("%+v, %v", l, err)
	}
	if text, err := json.Marshal(l); err != nil || string(text) != `{"tokens":7,"usd":0.5,"per":"day"}` {
		t.Errorf("%s, %v", text, err)
	}
}

func TestLimitCheck(t *testing.T) {
	t.Parallel()
	for l, want := range map[Limit]string{
		{}:                             "none",
		{Tokens: 5, Per: PerDay}:       "5 tokens per day",
		{USD: Dollar, Per: PerTotal}:   "1 usd in total",
		{5, Dollar / 2, PerMonth}:      "5 tokens and 0.5 usd per month",
		{Per: PerHour}:                 "none",
		{Tokens: 5}:                    "",
		{Tokens: 5, Per: "week"}:       "",
		{Tokens: 1 << 63, Per: PerDay}: "",
		{USD: MaxMoney, Per: PerDay}:   "",
	} {
		got, err := l.Check()
		if (err == nil) != (want != "") || err == nil && (got.String() != want || !got.IsSet()) {
			t.Errorf("%+v: %v, %v; want %q", l, got, err, want)
		}
	}
}

func TestLimitWithin(t *testing.T) {
	t.Parallel()
	day := Limit{Tokens: 2400, USD: 24, Per: PerDay}
	for l, want := range map[Limit]bool{
		day: true, {Tokens: 2400, Per: PerDay}: false, {2400, 24, PerTotal}: true, {2401, 24, PerTotal}: false, {100, 1, PerHour}: true,
		{101, 1, PerHour}: false, {Per: PerTotal}: false, {2400, 24, PerMonth}: true,
	} {
		if got := l.Within(day); got != want {
			t.Errorf("%v within %v: %v", l, day, got)
		}
	}
	if (Limit{1, 1, PerHour}).Within(Limit{1 << 40, 1 << 40, PerTotal}) || !day.Within(Limit{Per: PerTotal}) {
		t.Error("a limit without end")
	}
}

func FuzzMoney(f *testing.F) {
	for _, s := range []string{"5", "0.25", "1e9", "12345678.000000000001", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseMoney(text)
		if err != nil {
			return
		}
		if again, err := ParseMoney(m.String()); err != nil || again != m {
			t.Errorf("%q is %v, and that %v (%v)", text, m, again, err)
		}
	})
}
