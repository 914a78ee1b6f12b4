package preview

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"boxgate/api/spec"
	"boxgate/observe/replay"
	"boxgate/policy/authority"
)

// LineText describes a line of authority.
func LineText(l *authority.Line) string {
	var text string
	switch l.Kind {
	case authority.KindName:
		text = "connections to " + l.Name + portsText(l.Ports)
		if l.Name == "*" {
			text = "connections to every name" + portsText(l.Ports)
		}
	case authority.KindQuery:
		text = "DNS queries for " + l.Name
	case authority.KindAddress:
		text = l.Prefix + protocolsText(l) + portsText(l.Ports)
	case authority.KindPort:
		text = strings.TrimPrefix(portsText(l.Ports), ", ") + " of allowed addresses" + protocolsText(l)
	case authority.KindRequest:
		text = "requests to " + strings.Join(l.Hosts, ", ")
		if len(l.Methods)+len(l.Paths) > 0 {
			text = strings.Join(append(slices.Clone(l.Methods), l.Paths...), " ") + " at " + strings.Join(l.Hosts, ", ")
		}
	case authority.KindUnjudged:
		text = "requests to " + strings.Join(l.Hosts, ", ") + ", which no rule judges any more"
	case authority.KindProxy:
		text = "connections by another upstream proxy, or without one"
	}
	if l.Some {
		text += " (some of it was allowed before)"
	}
	return text
}

func portsText(ports []uint16) string {
	switch len(ports) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf(", port %d", ports[0])
	}
	return ", ports " + strings.Trim(strings.ReplaceAll(fmt.Sprint(ports), " ", ", "), "[]")
}

func protocolsText(l *authority.Line) string {
	var list []string
	for _, p := range l.Protocols {
		list = append(list, strings.ToUpper(string(p)))
	}
	if len(list) == 0 {
		return ""
	}
	return " by " + strings.Join(list, ", ")
}

// TrafficText describes a line of the traffic.
func TrafficText(l *replay.Line) string {
	text := l.Name
	if text == "" && l.Addr.IsValid() {
		text = l.Addr.String()
	}
	if l.Port != 0 {
		text = net.JoinHostPort(text, strconv.Itoa(int(l.Port)))
	}
	if l.Method != "" {
		text = l.Method + " " + text + l.Shape
	}
	return strings.Join(slices.DeleteFunc([]string{text, string(l.Stage)}, func(s string) bool { return s == "" }), ", ")
}

// Outcome describes the effect of a change on the traffic that a box has had, in sentences.
func Outcome(r *spec.Replay) []string {
	t := &r.Traffic
	if r.Unobserved {
		return []string{"The gateway keeps no record of traffic (log.observations.size is 0), so the effect on it is unknown."}
	}
	if t.Seen.Count == 0 {
		return []string{"The box has had no traffic in the last 7 days."}
	}
	var list []string
	switch denied := t.Opens.Count + t.Denied.Count; {
	case denied == 0:
		list = append(list, "The box has had no denials in the last 7 days that can be replayed.")
	default:
		list = append(list, fmt.Sprintf("Opens %d of the last %s.", t.Opens.Count, count(denied, "denial")))
	}
	if t.Closes.Count > 0 {
		list = append(list, fmt.Sprintf("Denies %s that the policy allows now.", count(t.Closes.Count, "decision")))
	}
	if t.Partly.Count > 0 {
		list = append(list, fmt.Sprintf("Changes a part of %s, which are not counted above.", count(t.Partly.Count, "decision")))
	}
	if n := t.Unknown.Count; n > 0 {
		list = append(list, fmt.Sprintf("The effect on %s is unknown.", count(n, "further decision")))
	}
	if n := r.Overflow + r.Lost; n > 0 {
		list = append(list, count(n, "decision")+" are not on record.")
	}
	return list
}

func count(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.FormatUint(n, 10) + " " + noun + "s"
}
