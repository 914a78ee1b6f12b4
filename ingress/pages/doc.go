// Package pages renders the gateway's own answers at a public URL: a page for browsers, problem details (RFC 9457) for
// programs. Both describe the problem and the remedy. They contain no data from visitors or applications, except for the
// path to return to after a sign-in, which is escaped.
package pages
