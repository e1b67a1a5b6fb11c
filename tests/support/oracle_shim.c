/* Preloaded into mpirun by oracle.py, so that Open MPI 4 maps a rank file without a launch, and both majors print each
 * binding exactly. Reading the rank file, finding the hosts and turning slots into sets of PUs stay mpirun's own code.
 *
 * hwloc's function is that of the copy that mpirun brings; no header is needed. */
#include <stddef.h>

extern int hwloc_bitmap_list_snprintf(char *text, size_t size, const void *set);
extern int hwloc_bitmap_list_asprintf(char **text, const void *set);

/* Under --do-not-launch Open MPI 4 asks the rank-file mapper for a step that it does not have, and fails ("The attempt to
 * assign hardware locations to processes ... failed"). A launch skips the step. */
int orte_rmaps_base_assign_locations(void *job)
{
    (void)job;
    return 0;
}

/* The text of a binding: OS indexes of PUs. Of itself Open MPI 4 prints nothing for a rank that has the whole machine. */
int opal_hwloc_base_cset2mapstr(char *text, int size, void *machine, const void *pus)
{
    (void)machine;
    hwloc_bitmap_list_snprintf(text, (size_t)size, pus);
    return 0;
}

/* The same in Open MPI 5, whose own text has cores where PUs differ. */
char *prte_hwloc_base_cset2str(const void *pus, int threads, int physical, void *machine)
{
    char *text = NULL;
    (void)threads;
    (void)physical;
    (void)machine;
    return hwloc_bitmap_list_asprintf(&text, pus) < 0 ? NULL : text;
}
