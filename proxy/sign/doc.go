// Package sign signs requests with keys that the box does not have: by AWS Signature Version 4, and by HMAC-SHA256 of a
// text that is made of the request. What is signed is the request as it will be forwarded.
//
// The package is pure: requests and keys in, headers out. The caller provides the time.
package sign
