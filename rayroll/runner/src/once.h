/* `once`: for carriers that offer a call for each command and no stream. The request comes as frames on standard input, or
 * as an argument or a file in base64; the reply goes to standard output as frames, or in base64. */
#ifndef RR_ONCE_H
#define RR_ONCE_H

#include "bytes.h"

struct once_options { const char *request, *request_path, *state_path; bool base64; };

const char *once_begin(const struct once_options *o); /* NULL, or what is wrong */
bool once_end(const struct once_options *o);

#endif
