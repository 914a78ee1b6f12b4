package postgres

import (
	"fmt"
	"slices"
	"strings"

	"boxgate/policy/name"
)

// safeParameters are the startup parameters that a client may set, as drivers do. The box could set each of them
// with SET as well.
var safeParameters = []string{
	"application_name", "client_encoding", "client_min_messages", "datestyle", "default_transaction_isolation",
	"default_transaction_read_only", "extra_float_digits", "idle_in_transaction_session_timeout", "intervalstyle",
	"lock_timeout", "search_path", "standard_conforming_strings", "statement_timeout", "timezone",
}

// checkStartup compares the box's startup message with the login, and returns the parameters to forward.
func (s *Session) checkStartup(asked startup) (map[string]string, *Refusal) {
	refuse := func(text string, args ...any) (map[string]string, *Refusal) {
		return nil, &Refusal{Reason: name.ReasonHeaderRule, Code: codeNotAuthorized, Text: fmt.Sprintf(text, args...)}
	}
	passed := map[string]string{}
	for n, value := range asked.parameters {
		switch {
		case n == "user" && value != s.Login.User:
			return refuse("the gateway logs in to %s as user %q only", s.Authority, s.Login.User)
		case n == "database" && value != s.Login.Database:
			return refuse("the gateway logs in to database %q of %s only", s.Login.Database, s.Authority)
		case n == "user", n == "database":
		case slices.Contains(safeParameters, strings.ToLower(n)):
			passed[n] = value
		default:
			return nil, &Refusal{Reason: name.ReasonHeaderRule, Code: codeUnsupported,
				Text: fmt.Sprintf("the startup parameter %q is not passed on; use SET once connected", truncated(n))}
		}
	}
	return passed, nil
}

// truncated truncates a text from the box for an error message.
func truncated(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
