// Package access makes and checks the cookies by which a browser stays signed in to one public URL.
//
// A cookie says which session it is, how it began and until when it lasts, and is authenticated with the key of its URL and
// the ID of the URL's incarnation: no other URL, and not the same one created anew, accepts it. Nothing is
// remembered of a session but that it was ended before its time.
package access
