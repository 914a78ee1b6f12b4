// Package secrets gets the values of the operator's secrets: literals, files, variables of the gateway's environment and
// the output of commands. Header rules name them ([policy.Header], [policy.Placeholder]); what a rule may name is only
// what the configuration defines, so that nobody who can write rules can read files of the host or run commands on it.
//
// A value is kept until its source is due for a refresh, and never longer: [Secrets.Secret] returns a value that was read
// within the refresh time, or an error. Before a value expires it is refreshed ahead, and should that fail the value
// stays until its time is over. Each source is asked by one refresh at a time, under a deadline, and apart from all
// others: one that hangs holds up nobody else's.
//
// Values are held to what may stand in a header (visible ASCII, spaces and tabs inside, up to 8 KiB) after one line break
// at the end is taken off. Errors name the secret, its source and the cause, and nothing of the value.
package secrets
