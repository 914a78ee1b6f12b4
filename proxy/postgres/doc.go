// Package postgres logs in to PostgreSQL servers in the place of a box (protocol version 3). [Session.Open] speaks with
// both sides until the server is ready for queries; after that [Link] passes their messages on.
//
// The box is asked for nothing: whoever can reach the gateway from the box is the box. What it says first is checked
// against the login (package rule/postgres), as a server would check it.
package postgres
