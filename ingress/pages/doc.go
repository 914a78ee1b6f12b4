// Package pages writes what the gateway itself answers at a public URL: a page for browsers, problem details (RFC 9457)
// for programs. Both say what is wrong and who can do something about it. Nothing that a visitor or an application sent
// is part of them, but for the path to which a sign-in returns, which is escaped.
package pages
