// Package dialect reads and writes policies in the forms of several products: boxgate, Vercel Sandbox, E2B and Daytona. [Parse]
// detects the dialect and returns a [policy.Spec] with header rules. [ParseSpec] refuses header rules. [Convert] translates a policy
// between dialects.
//
// Each dialect keeps its meaning. Parts that boxgate cannot honour, or another dialect cannot express, are problems with
// pointers.
package dialect
