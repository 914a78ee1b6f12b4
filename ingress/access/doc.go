// Package access issues and verifies the cookies that keep a browser signed in to one public URL.
//
// A cookie contains the session's ID, kind, start and expiry. It is authenticated with the key of its URL and the ID of the
// URL's incarnation: other URLs, and the same URL after it was recreated, reject it. The only stored state are sessions
// that were ended early.
package access
