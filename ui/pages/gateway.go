package pages

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"
)

func gatewayRoutes() []Route { return []Route{{"GET " + Prefix + "gateway", gatewayPage}} }

// gatewayState is the state of the gateway, as the API shows it.
type gatewayState struct {
	Version, Revision, Date string
	StartedAt               stamp `json:"started_at"`
	Boxes                   map[string]int
	Denials                 struct {
		Seconds int
		Total   uint64
		Reasons map[string]uint64
		Boxes   []struct {
			ID, Name string
			Total    uint64
		}
		AtLeast bool `json:"at_least"`
	}
	Listeners []struct {
		Name, Address string
		Accepts       bool
		Connections   int
		Limit         int
	}
	Places      []place
	Descriptors place
}

// place is the usage of a bounded resource.
type place struct {
	Name        string
	Used, Limit int
}

// Percent returns the used part of the limit, or "" without a limit.
func (p place) Percent() string {
	if p.Limit == 0 {
		return ""
	}
	return strconv.Itoa(p.Used*100/p.Limit) + " %"
}

// amount is a number with its name.
type amount struct {
	Name  string
	Count uint64
}

// BoxCount returns the number of boxes.
func (g gatewayState) BoxCount() (n int) {
	for _, count := range g.Boxes {
		n += count
	}
	return n
}

// States returns the numbers of boxes by state.
func (g gatewayState) States() (list []amount) {
	for _, state := range slices.Sorted(maps.Keys(g.Boxes)) {
		list = append(list, amount{state, uint64(g.Boxes[state])})
	}
	return list
}

// Reasons returns the reasons of recent denials, the most frequent first.
func (g gatewayState) Reasons() (list []amount) {
	for reason, count := range g.Denials.Reasons {
		list = append(list, amount{reason, count})
	}
	slices.SortFunc(list, func(a, b amount) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name)) })
	return list
}

// Minutes returns the length of the period in which denials are counted.
func (g gatewayState) Minutes() int { return g.Denials.Seconds / 60 }

// Uptime returns how long the gateway has run.
func (g gatewayState) Uptime() string {
	d := time.Since(g.StartedAt.Time).Truncate(time.Minute)
	if d >= 48*time.Hour {
		return strconv.Itoa(int(d/(24*time.Hour))) + " days"
	}
	return strconv.Itoa(int(d/time.Hour)) + " h " + strconv.Itoa(int(d%time.Hour/time.Minute)) + " min"
}

func gatewayPage(v *Visit) (View, error) {
	var state gatewayState
	if err := v.get("/v2/gateway", &state); err != nil {
		return View{}, err
	}
	return View{Name: "gateway", Title: "Gateway", Section: "Gateway", Data: state}, nil
}
