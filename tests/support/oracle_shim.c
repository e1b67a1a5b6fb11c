/* Preloaded into mpirun by oracle.py, so that it maps a rank file without a launch and prints each binding exactly.
 *
 * Reading the rank file, finding the hosts and turning slots into sets of PUs stay mpirun's own code. Each major version
 * calls only the functions that are named after it (OPAL and ORTE: 4, PRRTE: 5). hwloc is not linked here: the functions
 * are those of the copy that mpirun brings. */
#include <hwloc.h>

/* Under --do-not-launch Open MPI 4 asks the rank-file mapper for a step that it does not have, and fails ("The attempt to
 * assign hardware locations to processes ... failed"). A launch skips the step. */
int orte_rmaps_base_assign_locations(void *job)
{
    (void)job;
    return 0;
}

/* The text of a binding: OS indexes of PUs. Of itself Open MPI 4 prints nothing for a rank that has the whole machine, and
 * PRRTE 3 prints cores, by logical index on a machine with SMT and by OS index on one without. */
int opal_hwloc_base_cset2mapstr(char *text, int size, hwloc_topology_t machine, hwloc_const_bitmap_t pus)
{
    (void)machine;
    hwloc_bitmap_list_snprintf(text, (size_t)size, pus);
    return 0;
}

char *prte_hwloc_base_cset2str(hwloc_const_bitmap_t pus)
{
    char *text = NULL;
    hwloc_bitmap_list_asprintf(&text, pus);
    return text;
}
