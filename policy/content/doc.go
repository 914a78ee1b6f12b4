// Package content reads the messages in requests: JSON-RPC of the Model Context Protocol, and GraphQL. Request rules match them
// ([boxgate/policy/match]).
//
// The readers accept only requests that all servers read alike, and return a flaw for all others: duplicate or misspelled keys,
// text that is not UTF-8, other media types, and everything beyond their bounds. A flaw refuses the request. Texts of flaws are
// constants, since bodies contain secrets.
package content
