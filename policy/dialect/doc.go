// Package dialect reads and writes policies as products write them: boxgate's own form, that of Vercel Sandbox and that of E2B.
// [Parse] tells them apart and returns a [policy.Spec] with the header rules that come with it; [ParseSpec] is for where there
// can be none; [Convert] writes a policy of one dialect in another.
//
// Each dialect keeps its own meaning: what boxgate cannot honour, or another dialect cannot say, is a problem with its place
// in the document.
package dialect
