// Package wire reads the requests and responses of model APIs: [ReadCall] the model and the largest answer that a request asks for, a
// [Reader] the tokens that a response reports. A Reader is fed the response as it passes, in pieces of any size. It keeps neither text nor
// pieces, only a few numbers and names, and the result does not depend on how the response is cut. [Refusal] writes an error as the
// vendor would, so that clients treat it alike.
//
// Values count by their place only: "usage" in the arguments of a tool, in a text or in a message of the box is none.
//
// The package is pure: bytes in, bytes out.
package wire
