// Package secrets provides the values of the operator's secrets: literals, files, variables of the gateway's
// environment, the output of commands and remote sources. Header rules refer to them by name ([rule.Value]). A rule can name only secrets that the configuration defines, so that authors of rules cannot read
// files of the host or run commands on it.
//
// A value is never used for longer than the refresh time of its source: [Secrets.Secret] returns a value that was read
// within that time, or an error. Values are refreshed before they expire; if that fails, the value is used until it
// does. Each source has one refresh at a time, with a deadline and independent of the others: one that hangs does not
// delay the rest.
//
// A value must be valid in a header (visible ASCII, spaces and tabs inside, up to 8 KiB) after one trailing line break
// is stripped. Errors contain the secret's name, its source and the cause, but no part of the value.
package secrets
