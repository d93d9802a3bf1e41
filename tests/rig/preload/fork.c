/* A way to fork for a program that may not say so: preloaded into a process, sync() copies it. The copy does not live
 * for long, whatever becomes of it. */

#include <unistd.h>

void sync(void) {
    if (fork() == 0) {
        alarm(10);
    }
}
