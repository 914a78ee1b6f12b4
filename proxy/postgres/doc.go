// Package postgres logs in to PostgreSQL servers on behalf of a box (protocol version 3). [Session.Open] talks to both
// sides until the server is ready for queries; from then on [Link] forwards their messages.
//
// The box need not authenticate: its address identifies it. Its startup message is checked against the login (package
// rule/postgres), as a server would check it.
package postgres
